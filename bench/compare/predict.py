#!/usr/bin/env python3
"""What `ats simulate` predicts for the cells of a benchmark, beside what was measured; `make
bench-predict`.

Reads a results.json that compare.py wrote on emulated rigs, runs no model, and ends with an error
if a prediction is off by more than 10 %. docs/simulator.md has what the predictions rest on. Cells
in which the CPU computes depend on how fast this CPU was when they were measured; --cpu-gbps
replaces the figure that the rig was scaled by.
"""

import argparse
import os
import re
import sys

import compare
import driver
import host_time
import machine
import report
import simulator
import stock

MOST_PERCENT = 10.0
ATS_POLICIES = {"placement": "ats-auto-serial", "async": "ats-auto-whole", "dynamic": "ats-auto"}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("results", nargs="?", default="build/bench/quick/results.json")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--model-dir", default=os.environ.get("ATS_BENCH_MODELS",
                                                              "build/bench/models"))
    parser.add_argument("--cpu-gbps", action="append", default=[], metavar="MODEL=X",
                        help="what the CPU read of this model's weights while it was measured")
    return parser.parse_args()


def policy_of(system, cell):
    """(policy, whether weights are mapped) of a system in a cell, or None for what the simulator
    does not model."""
    if system in ATS_POLICIES:
        return ATS_POLICIES[system], False
    way = cell["systems"][system].get("way")
    if system == "layers":
        return "layers", True
    if way is None:
        sys.exit(f"predict: the results have a system {system!r}, which this version does not know; "
                 "make them anew by `make bench-quick`")
    if stock.is_repack(way):
        return None
    name, *rest = way.split(",")
    return name.replace("ncmoe=", "n-cpu-moe="), "no-mmap" not in rest


def machine_of(name, path, results, arguments):
    """As the results say, if they do: "rig NAME, N MiB of VRAM"."""
    text = results.get("models", {}).get(name, {}).get("machine", "")
    said = re.match(r"rig (\S+), (\d+) MiB of VRAM", text)
    rig, vram = (said.group(1), int(said.group(2)) << 20) if said else (None, None)
    try:
        return machine.Machine(name, path, f"models/{name}.json", compare.CONTEXT, "EMU0",
                               arguments.build, rig=rig, vram=vram)
    except driver.Failed as failure:
        sys.exit(f"predict: {failure}")


def machines_of(results, arguments):
    """By model."""
    machines = {}
    for name in dict.fromkeys(cell["model"] for cell in results["cells"]):
        path = os.path.join(arguments.model_dir, name + ".gguf")
        if not os.path.exists(path):
            sys.exit(f"predict: {path} is not there; `make bench-quick` writes it, or name its "
                     "folder with --model-dir")
        machines[name] = machine_of(name, path, results, arguments)
    return machines


def rows_of(results, machines, simulated):
    """[(model, phase, system, policy, measured, predicted)]"""
    rows = []
    for cell in results["cells"]:
        name = cell["model"]
        for system, measured in cell["systems"].items():
            policy = policy_of(system, cell)
            if policy is not None:
                predicted = simulated.tokens_per_s(machines[name], *policy, cell["phase"],
                                                   measured["scale"])
                text = policy[0] + (", mapped" if policy[1] else "")
                rows.append((name, cell["phase"], system, text, measured["tokens_per_s"],
                             predicted))
    return rows


def main():
    arguments = parse_arguments()
    results = report.read(arguments.results, "make bench-quick")
    if not results.get("emulated"):
        sys.exit(f"predict: {arguments.results} is of a real device, not of an emulated rig")
    simulated = simulator.Simulator(arguments.build,
                                    dict(word.split("=", 1) for word in arguments.cpu_gbps))
    machines = machines_of(results, arguments)
    simulated.host_time = host_time.fit(host_time.samples(results["cells"], machines))
    try:
        rows = rows_of(results, machines, simulated)
    except driver.Failed as failure:
        sys.exit(f"predict: {failure}")
    print(f"{'model':<20}{'cell':<12}{'system':<11}{'policy':<22}{'measured':>9}{'predicted':>10}"
          f"{'off by':>9}")
    over = 0
    for model, phase, system, policy, measured, predicted in rows:
        percent = 100 * (predicted / measured - 1)
        over += abs(percent) > MOST_PERCENT
        mark = " *" if abs(percent) > MOST_PERCENT else ""
        print(f"{model:<20}{phase:<12}{system:<11}{policy:<22}{measured:>9.1f}{predicted:>10.1f}"
              f"{percent:>+8.1f}%{mark}")
    print("Tokens/s on emulated rigs.")
    if simulated.host_time:
        print("Host time of a prompt, fitted to llama.cpp by layers here: %.2f ns per value of an "
              "embedding,\n%.2f per value of a mask." % simulated.host_time)
    if simulated.foreign:
        print("Some cells were measured under another scale than this host's: their CPU is the "
              "rig's, scaled.")
    if over:
        sys.exit(f"predict: {over} of {len(rows)} predictions are off by more than "
                 f"{MOST_PERCENT:.0f} %")


if __name__ == "__main__":
    main()
