#!/usr/bin/env python3
"""Decoding while the machine has load: the static policy against the load-aware one.

`make load-adapt`. Both run on the same rig with the same model and the same tokens, in turns. The
CPU is loaded by a real process on the driver's cores, accelerator and link in the emulation.
docs/load.md explains the figures.
"""

import argparse
import glob
import json
import os
import sys
import time

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "compare"))

import compare
import driver
import experiments
import figures
import machine
import show

POLICIES = {"static": {"ATS_ADAPT": "off"}, "adaptive": {"ATS_ADAPT": "auto"}}
CONTEXT = 4352


# a thread that had less of its core's time without load shared it with another program
LEAST_OWN_CPU = 0.95


class LoadDriver(driver.Driver):
    """Judges a run by its phases without load on the CPU: in the others the driver's own thread is
    held up on purpose, and so is the emulation's clock, which waits on that thread."""

    def __init__(self, build, libraries, cache, allow_late):
        program = os.path.join(build, "bin", "drive")
        backend = os.path.join(build, "lib", "libggml-ats.so")
        self.cpu_load = os.path.join(build, "bin", "cpu-load")
        self.allow_late = allow_late
        super().__init__(program, libraries, backend, cache)
        self.build = driver.digest([program, backend, self.cpu_load] +
                                   glob.glob(os.path.join(libraries, "*.so*")))

    def _start(self, machine_, arguments, environment):
        result = super()._start(machine_, arguments, environment)
        result["tests"] = [with_lateness(dict(p, disturbed=1.0) if shared(p, machine_) else p)
                           for p in result["phases"] if p["cpu_taken"] is None]
        return result

    def _in_time(self, machine_, arguments, environment, only=None):
        if not self.allow_late:
            return super()._in_time(machine_, arguments, environment, only)
        result = self._start(machine_, arguments, environment)
        return dict(result, lag=driver.lag(result))


def with_lateness(phase):
    """As a test of the driver: of a phase all counts."""
    counters = driver.emulated(phase)
    return dict(phase, late_us=counters.get("lag_us", 0), used_us=counters.get("in_use_us", 0))


def shared(phase, machine_):
    """Whether another program ran on the driver's core. With several threads they wait for each
    other, and nothing is known."""
    return machine_.threads == 1 and phase["own_cpu"] < LEAST_OWN_CPU


def seconds_list(text):
    values = [float(word) for word in text.split(",")]
    if len(values) != 5 or min(values) <= 0 or max(values) > 3600:
        raise argparse.ArgumentTypeError("five lengths in seconds, separated by commas")
    return values


def within(least, most, of=float):
    def parse(text):
        value = of(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"not from {least} to {most}")
        return value
    return parse


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n", maxsplit=1)[0], epilog="Without --ramp or --long: load "
        "that comes and goes. All of them: --load --ramp --long.")
    parser.add_argument("--load", action="store_true",
                        help="no load, CPU load, none, accelerator and link load, none")
    parser.add_argument("--ramp", action="store_true",
                        help="a CPU that gets slower by 30 %% over minutes, as with heat")
    parser.add_argument("--long", action="store_true", help="2048 tokens without load")
    parser.add_argument("--model", default="qwen3-14b", choices=machine.MODELS, metavar="NAME",
                        help="default qwen3-14b; " + ", ".join(machine.MODELS))
    parser.add_argument("--file", help="a GGUF instead of the model's depth-scaled one")
    parser.add_argument("--rig", help="instead of the model's own; see `ats rig --list`")
    parser.add_argument("--vram", type=within(1, 1 << 20, int), metavar="MIB",
                        help="budget instead of the rig's")
    parser.add_argument("--repeats", type=within(1, 100, int), default=3,
                        help="how often each policy runs (default 3)")
    parser.add_argument("--seconds", type=seconds_list, default=[20, 30, 15, 30, 15],
                        metavar="N,N,N,N,N", help="of the five phases (default 20,30,15,30,15)")
    parser.add_argument("--cpu", type=within(1, 95), default=experiments.LOAD_PERCENT,
                        metavar="PERCENT", help="load of the CPU (default 60)")
    parser.add_argument("--accel", type=within(1, 95), default=experiments.LOAD_PERCENT,
                        metavar="PERCENT", help="load of accelerator and link (default 60)")
    parser.add_argument("--period", type=within(1, 1000, int), default=2, metavar="MS",
                        help="the CPU's load takes its share of each period (default 2)")
    parser.add_argument("--ramp-seconds", type=within(1, 3600), default=180, metavar="N",
                        help="of --ramp (default 180)")
    parser.add_argument("--tokens", type=within(1, 2048, int), default=2048,
                        help="of --long (default 2048)")
    parser.add_argument("--seed", type=within(0, 2**63, int), default=1,
                        help="of the token stream (default 1)")
    parser.add_argument("--check", action="store_true", help="fail if a bound is missed")
    parser.add_argument("--fresh", action="store_true", help="use no runs made before")
    parser.add_argument("--allow-late", action="store_true",
                        help="count runs whose emulation was late: to try this program out")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--out", help="default: bench/load in the build's folder")
    parser.add_argument("--model-dir", default=os.environ.get("ATS_BENCH_MODELS",
                                                              "build/bench/models"))
    return parser.parse_args()


# with loading and the prompt a run ends within driver.TIMEOUT_S
MOST_SECONDS = driver.TIMEOUT_S - 120


def chosen_experiments(arguments):
    chosen = []
    if arguments.load or not (arguments.ramp or arguments.long):
        chosen.append(experiments.load(arguments.seconds, arguments.cpu, arguments.accel))
    if arguments.ramp:
        chosen.append(experiments.ramp(arguments.ramp_seconds))
    if arguments.long:
        chosen.append(experiments.long(arguments.tokens))
    for experiment in chosen:
        if experiment.phases[0].unit == "s" and experiment.starts()[-1] > MOST_SECONDS:
            sys.exit(f"load: phases of {experiment.starts()[-1]:g} s; a run has at most "
                     f"{MOST_SECONDS} s")
    return chosen


def run_arguments(drive, experiment, arguments):
    return ["--device", "ATS0", "--load", "none", "--phases", experiment.text(), "--depth",
            str(experiment.depth), "--window", str(experiment.window), "--seed",
            str(arguments.seed), "--cpu-load", os.path.abspath(drive.cpu_load), "--period",
            str(arguments.period)]


def measure(drive, m, experiment, arguments):
    """Pairs of runs, one for each repeat, and what was late. The policies take turns in which of
    them begins, so that what the host does meanwhile is spread over both."""
    pairs, late = [], []
    for repeat in range(arguments.repeats):
        order = list(POLICIES) if repeat % 2 == 0 else list(reversed(POLICIES))
        pair = {}
        for policy in order:
            started = time.monotonic()
            result = drive.run(m, run_arguments(drive, experiment, arguments),
                               dict(POLICIES[policy], **m.budget()), repeat)
            is_late = result["lag"] > driver.MOST_LAG and not arguments.allow_late
            if is_late:
                late.append(f"{policy}, repeat {repeat + 1}")
            else:
                pair[policy] = result["phases"]
            medians = [figures.median_us(p) for p in result["phases"]]
            driver.say(f"repeat {repeat + 1}, {policy}: ms per token " + "  ".join(
                "-" if us is None else f"{us / 1e3:.2f}" for us in medians) +
                f"  ({time.monotonic() - started:.0f} s)" +
                (", late: does not count" if is_late else ""))
        if len(pair) == len(POLICIES):
            pairs.append(pair)
    return pairs, late


def without_tokens(phase):
    return {"n_tokens": len(phase["tokens"]["us"]),
            **{key: value for key, value in phase.items() if key != "tokens"}}


def describe(m, experiment, pairs, late, arguments):
    kinds = [phase.kind for phase in experiment.phases]
    result = {"format": "ats-load-1", "experiment": experiment.name, "emulated": m.emulated,
              "model": m.model, "machine": m.describe(), "layers": m.layers,
              "full_layers": m.full_layers, "phases": experiment.text(),
              "period_ms": arguments.period, "repeats": len(pairs), "late": late,
              "cpu_priority": next((p["cpu_priority"] for pair in pairs for run in pair.values()
                                    for p in run if p["cpu_priority"]), None),
              "figures": figures.figures(pairs, kinds, experiment.name == "long"),
              "series_ms": {p: figures.series(pairs, p, experiment, 240) for p in POLICIES},
              "runs": [{p: [without_tokens(phase) for phase in pair[p]] for p in POLICIES}
                       for pair in pairs]}
    result["checks"] = figures.checks(result["figures"], experiment.phases, experiment.bounds,
                                      m.threads == 1)
    return result


def write(folder, name, files):
    for ending, text in files.items():
        path = os.path.join(folder, f"{name}.{ending}")
        with open(path + ".part", "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(path + ".part", path)


def carry_out(drive, m, experiment, arguments, folder):
    """One experiment; returns what is wrong with it, or None."""
    driver.say(f"{experiment.title}: {experiment.text()}, {arguments.repeats} times each")
    pairs, late = measure(drive, m, experiment, arguments)
    if not pairs:
        return "the emulation was late in every repeat: this machine is busy; nothing is written"
    result = describe(m, experiment, pairs, late, arguments)
    name = f"{experiment.name}-{m.model}"
    write(folder, name, {"json": json.dumps(result, indent=1) + "\n",
                         "md": show.markdown(result, experiment),
                         "svg": show.chart(pairs, result, experiment)})
    print(show.table(result, experiment))
    print()
    print(show.plot(pairs, experiment, sys.stdout.isatty()))
    print(f"\nWritten: {os.path.join(folder, name)}.json, .md and .svg\n", flush=True)
    if late:
        return "late: " + "; ".join(late) + ": run it again, and only those are measured"
    missed = [c["what"] for c in result["checks"] if not c["ok"]]
    return "missed: " + "; ".join(missed) if missed and arguments.check else None


def main():
    arguments = parse_arguments()
    libraries = os.environ.get("ATS_LLAMA_BIN") or sys.exit("load: ATS_LLAMA_BIN is not set; run "
                                                            "this by `make load-adapt`")
    folder = arguments.out or os.path.join(arguments.build, "bench", "load")
    runs = os.path.join(folder, "runs")
    try:
        os.makedirs(runs, exist_ok=True)
        for name in os.listdir(runs) if arguments.fresh else ():
            os.remove(os.path.join(runs, name))
        path = arguments.file or compare.model_file(arguments.model, arguments)
        drive = LoadDriver(arguments.build, libraries, runs, arguments.allow_late)
        rig = arguments.rig or machine.RIG_OF[arguments.model]
        if not drive.begun and "ATS_RIG_SCALE" not in os.environ:
            drive.measure_host(os.path.join(arguments.build, "bin", "ats"), rig)
        m = machine.Machine(arguments.model, path, f"models/{arguments.model}.json", CONTEXT, "EMU0",
                            arguments.build, rig=rig,
                            vram=arguments.vram << 20 if arguments.vram else None)
        driver.say(f"{arguments.model} on {m.describe()}: {m.layers} of {m.full_layers} layers")
        wrong = [carry_out(drive, m, e, arguments, folder) for e in chosen_experiments(arguments)]
    except (driver.Failed, OSError, ValueError) as failure:
        sys.exit(f"load: {failure}")
    if any(wrong):
        sys.exit("load: " + "; ".join(w for w in wrong if w))


if __name__ == "__main__":
    main()
