#!/usr/bin/env python3
"""llama.cpp against ATS on the same machine, model by model; `make bench`, `make bench-quick`.

For each model: finds the ways to run llama.cpp (stock.py), sweeps them shortly, and then
measures the baseline, the best for prefill, the best for decode, and ATS at each of its levels,
in rounds of rotating order. Runs are kept in build/bench/runs, so that an interrupted run
goes on where it stopped. docs/benchmark.md explains the figures.
"""

import argparse
import os
import subprocess
import sys
import time

import driver
import machine
import report
import simulator
import stock

CONTEXT = 4352
LEVELS = {
    "placement": {"ATS_TRANSFER": "serial", "ATS_EXPERTS": "whole", "ATS_ADAPT": "off"},
    "async": {"ATS_EXPERTS": "whole", "ATS_ADAPT": "off"},
    "dynamic": {},  # the default
}
# rounds end when all cells' samples agree (report.AGREEMENT), but not before so many
LEAST_ROUNDS = 2


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true",
                        help="two models, short phases: under 5 minutes")
    parser.add_argument("--models", help=f"comma-separated, of: {', '.join(machine.MODELS)}")
    parser.add_argument("--rig", help="instead of each model's own; see `ats rig --list`")
    parser.add_argument("--device", default="EMU0",
                        help="the accelerator; EMU0 (default) is the emulated one")
    parser.add_argument("--vram", type=int, metavar="MIB", help="budget instead of the rig's")
    parser.add_argument("--rounds", type=int, help="at most (default 3; 2 with --quick)")
    parser.add_argument("--fresh", action="store_true", help="use no runs made before")
    parser.add_argument("--out", default="build/bench")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--model-dir", default=os.environ.get("ATS_BENCH_MODELS",
                                                              "build/bench/models"))
    arguments = parser.parse_args()
    if arguments.rounds is None:
        arguments.rounds = 2 if arguments.quick else 3
    return arguments


def say(text):
    print(text, file=sys.stderr, flush=True)


def phases(quick):
    """Arguments of the driver for the measured phases."""
    return ["--prefill", "32,128,512" if quick else "32,128,512,1024,4096"] + decode_phase(quick)


def decode_phase(quick):
    return ["--depth", "512", "--decode", "32"] if quick else \
        ["--depth", "2048", "--decode", "128"]


def model_file(name, arguments):
    """The depth-scaled GGUF; written if it is not there."""
    path = os.path.join(arguments.model_dir, name + ".gguf")
    if not os.path.exists(path):
        os.makedirs(arguments.model_dir, exist_ok=True)
        say(f"writing {path}")
        done = subprocess.run([os.path.join(arguments.build, "bin", "ats"), "synth", "--model",
                               name, "--out", path], check=False)
        if done.returncode != 0:
            raise driver.Failed(f"{path} could not be written")
    return path


def run_system(system, m, drive, entry, ways, quick, round_number):
    """One sample of all cells of a system."""
    if system in LEVELS:
        return drive.run(m, ["--device", "ATS0", "--load", "none"] + phases(quick),
                         dict(LEVELS[system], **m.budget()), round_number)
    way = entry["ways"][system]
    if stock.is_repack(way):
        arguments = stock.phase_arguments(way, ways[way]) + decode_phase(quick)
        return drive.run(m, arguments, None, round_number, only="decode")
    return drive.run(m, ways[way] + phases(quick), None, round_number)


def measure_round(m, drive, entry, ways, quick, round_number):
    """Every system once. Each round starts with another one: what a system's neighbours in time
    do to it, and what the host does meanwhile, is spread over all."""
    order = list(entry["systems"])
    start = round_number % len(order)
    for system in order[start:] + order[:start]:
        started = time.monotonic()
        result = run_system(system, m, drive, entry, ways, quick, round_number)
        late = result["lag"] > driver.MOST_LAG
        if late:
            entry["late"].append(system)
        else:
            entry["systems"][system].append(result)
        driver.say(f"round {round_number + 1}, {system}: " + "  ".join(
            f"{report.phase_name(t)} {t['tokens_per_s']:.2f}" for t in result["tests"]) +
            f"  ({time.monotonic() - started:.0f} s)" + (", late: does not count" if late else ""))


def bounds(m, arguments, cells):
    """Tokens/s of the physical bound, by phase."""
    simulated = simulator.Simulator(arguments.build)
    return {c["phase"]: simulated.bound(m, c["phase"], next(iter(c["systems"].values()))["scale"])
            for c in cells}


def measure_model(name, arguments, drive):
    m = machine.Machine(name, model_file(name, arguments), f"models/{name}.json", CONTEXT,
                        arguments.device, arguments.build, rig=arguments.rig,
                        vram=arguments.vram << 20 if arguments.vram else None)
    where = m.rig if m.emulated else m.device
    say(f"{name} on {where}: {m.layers} of {m.full_layers} layers, {m.vram >> 20} MiB of VRAM")
    ways = stock.candidates(drive, m, arguments.device,
                            os.path.join(drive.libraries, "llama-fit-params"))
    rates = stock.sweep(drive, m, ways)
    chosen = stock.choose(rates, ways)
    entry = {"ways": chosen, "baseline": next(iter(chosen)), "sweep": rates, "late": [],
             "experts": m.experts > 0,
             "machine": m.describe(), "systems": {s: [] for s in list(chosen) + list(LEVELS)}}
    for r in range(arguments.rounds):
        measure_round(m, drive, entry, ways, arguments.quick, r)
        cells = report.cells_of({"models": {name: entry}})
        spreads = [f["spread_percent"] for c in cells for f in c["systems"].values()]
        agree = max(spreads, default=100) < 100 * report.AGREEMENT / 2
        if r + 1 >= LEAST_ROUNDS and not entry["late"] and agree:
            break
    if m.emulated:
        entry["bound"] = bounds(m, arguments, report.cells_of({"models": {name: entry}}))
    else:
        for run in entry["systems"][entry["baseline"]][:1]:
            entry["machine"] += f" ({run['description']})"
    return entry


def chosen_models(arguments):
    chosen = machine.QUICK_MODELS if arguments.quick else machine.MODELS
    if arguments.models:
        chosen = arguments.models.split(",")
        unknown = [n for n in chosen if n not in machine.MODELS]
        if unknown:
            sys.exit(f"compare: unknown model {unknown[0]}; there are {', '.join(machine.MODELS)}")
    if arguments.rounds < 1 or (arguments.vram is not None and arguments.vram < 1):
        sys.exit("compare: --rounds and --vram must be at least 1")
    return chosen


def main():
    arguments = parse_arguments()
    chosen = chosen_models(arguments)
    runs = os.path.join(arguments.out, "runs")
    if arguments.fresh and os.path.isdir(runs):
        for name in os.listdir(runs):
            os.remove(os.path.join(runs, name))
    libraries = os.environ.get("ATS_LLAMA_BIN") or sys.exit("compare: ATS_LLAMA_BIN is not set; "
                                                            "run this by `make bench`")
    results = {"emulated": arguments.device.startswith("EMU"), "models": {}}
    late = {}
    try:
        drive = driver.Driver(os.path.join(arguments.build, "bin", "drive"), libraries,
                              os.path.join(arguments.build, "lib", "libggml-ats.so"), runs)
        if results["emulated"] and not drive.begun:
            drive.measure_host(os.path.join(arguments.build, "bin", "ats"),
                               arguments.rig or machine.RIG_OF[chosen[0]])
        for name in chosen:
            try:
                entry = results["models"][name] = measure_model(name, arguments, drive)
            except driver.Failed as failure:
                raise driver.Failed(f"{name}: {failure}") from failure
            if entry["late"]:
                late[name] = entry["late"]
            shown = report.write(results, os.path.join(arguments.out, "quick")
                                 if arguments.quick else arguments.out)
    except (driver.Failed, OSError, ValueError) as failure:
        sys.exit(f"compare: {failure}")
    print(shown)
    if late:
        sys.exit("compare: the emulation did not keep its clock in some runs, which do not count: "
                 + "; ".join(f"{n}: {', '.join(f'{x} ({s.count(x)})' for x in dict.fromkeys(s))}"
                           for n, s in late.items()) +
                 ". This machine was busy; run it again, and only those are measured")


if __name__ == "__main__":
    main()
