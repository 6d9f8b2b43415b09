#!/usr/bin/env python3
"""llama.cpp against ATS on the same machine, model by model; `make bench`, `make bench-quick`.

For each model: finds the ways to run llama.cpp (stock.py), sweeps them shortly, and then
measures the baseline, the best for prefill, the best for decode, and ATS at each of its levels,
in rounds of alternating order. Runs are kept in build/bench/runs, so that an interrupted run
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
import stock

CONTEXT = 4352
LEVELS = {
    "placement": {"ATS_TRANSFER": "serial"},
    "async": {"ATS_TRANSFER": "async"},
}
# rounds end when all cells' samples agree this well, in percent
AGREEMENT = 3.0


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
    parser.add_argument("--rounds", type=int, default=3, help="at most (default 3)")
    parser.add_argument("--fresh", action="store_true", help="use no runs made before")
    parser.add_argument("--out", default="build/bench")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--model-dir", default=os.environ.get("ATS_BENCH_MODELS",
                                                              "build/bench/models"))
    return parser.parse_args()


def say(text):
    print(text, file=sys.stderr, flush=True)


def phases(quick):
    """Arguments of the driver for the measured phases."""
    if quick:
        return ["--prefill", "512", "--depth", "1024", "--decode", "48"]
    return ["--prefill", "512,1024,4096", "--depth", "2048", "--decode", "128"]


def model_file(name, arguments):
    """The depth-scaled GGUF; written if it is not there."""
    path = os.path.join(arguments.model_dir, name + ".gguf")
    if not os.path.exists(path):
        os.makedirs(arguments.model_dir, exist_ok=True)
        say(f"writing {path}")
        subprocess.run([os.path.join(arguments.build, "bin", "ats"), "synth", "--model", name,
                        "--out", path], check=True)
    return path


def ats_environment(level, m):
    return dict(LEVELS[level], ATS_VRAM=str(m.vram))


def choose(rates, ways):
    """The baseline and the best ways for prefill and for decode, each once: {system: way}."""
    names = list(ways)
    fair = {n: r for n, r in rates.items() if n != stock.REPACK}
    wanted = [names[0], max(fair, key=lambda n: fair[n][0]), max(fair, key=lambda n: fair[n][1])]
    return {f"stock {n}": n for n in dict.fromkeys(wanted)}


def measure_model(name, arguments, drive):
    m = machine.Machine(name, model_file(name, arguments), f"models/{name}.json", CONTEXT,
                        arguments.device, rig=arguments.rig,
                        vram=arguments.vram << 20 if arguments.vram else None)
    say(f"{name} on {m.rig}: {m.layers} of {m.full_layers} layers, "
        f"{m.vram >> 20} MiB of VRAM")
    ways = stock.candidates(drive, m, arguments.device,
                            os.path.join(drive.libraries, "llama-fit-params"))
    rates = stock.sweep(drive, m, ways)
    for way, (prefill, decode) in rates.items():
        say(f"  {way:<24} prefill {prefill:8.1f}  decode {decode:7.2f}")
    chosen = choose(rates, ways)
    entry = {"ways": chosen, "baseline": next(iter(chosen)), "sweep": rates,
             "systems": {s: [] for s in list(chosen) + list(LEVELS)}}
    for r in range(arguments.rounds):
        order = list(entry["systems"])
        for system in order if r % 2 == 0 else reversed(order):
            started = time.monotonic()
            if system in LEVELS:
                result = drive.run(m, ["--device", "ATS0", "--load", "none"] +
                                   phases(arguments.quick),
                                   ats_environment(system, m), r)
            else:
                result = drive.run(m, ways[chosen[system]] + phases(arguments.quick), None, r)
            entry["systems"][system].append(result)
            say(f"  round {r + 1}, {system}: " + "  ".join(
                f"{report.phase_name(t)} {t['tokens_per_s']:.2f}" for t in result["tests"]) +
                f"  ({time.monotonic() - started:.0f} s)")
        worst = max(f["spread_percent"] for c in report.cells_of({"models": {name: entry}})
                    for f in c["systems"].values())
        if r > 0 and worst < AGREEMENT / 2:
            break
    return entry


def main():
    arguments = parse_arguments()
    chosen = machine.QUICK_MODELS if arguments.quick else machine.MODELS
    if arguments.models:
        chosen = arguments.models.split(",")
        unknown = [n for n in chosen if n not in machine.MODELS]
        if unknown:
            sys.exit(f"compare: unknown model {unknown[0]}; there are {', '.join(machine.MODELS)}")
    runs = os.path.join(arguments.out, "runs")
    if arguments.fresh and os.path.isdir(runs):
        for name in os.listdir(runs):
            os.remove(os.path.join(runs, name))
    libraries = os.environ.get("ATS_LLAMA_BIN") or sys.exit("compare: ATS_LLAMA_BIN is not set; "
                                                            "run this by `make bench`")
    drive = driver.Driver(os.path.join(arguments.build, "bin", "drive"), libraries,
                          os.path.join(arguments.build, "lib", "libggml-ats.so"), runs)
    results = {"emulated": arguments.device.startswith("EMU"), "models": {},
               "machine": arguments.rig or "each model on its rig (docs/benchmark.md)"}
    late = []
    for name in chosen:
        try:
            results["models"][name] = measure_model(name, arguments, drive)
        except driver.Failed as failure:
            sys.exit(f"compare: {name}: {failure}")
        late += [name for runs_of in results["models"][name]["systems"].values()
                 for run in runs_of if run["lag"] > driver.MOST_LAG]
        shown = report.write(results, os.path.join(arguments.out, "quick") if arguments.quick
                             else arguments.out)
    print(shown)
    if late:
        sys.exit(f"compare: the emulation did not keep its clock in runs of "
                 f"{', '.join(sorted(set(late)))}: this machine was busy; run it again")


if __name__ == "__main__":
    main()
