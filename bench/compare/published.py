#!/usr/bin/env python3
"""A benchmark beside the published evaluation; `make bench-published`.

Reads a results.json that compare.py wrote. Per cell: the published ratio to llama.cpp by layers and
the one reached here, to layers and to llama.cpp at its best. Then the baseline's shape: tokens/s of
llama.cpp by layers here, stated for the whole model on the whole machine (measured, times what the
simulator says that the whole model is to the depth-scaled file), against the published column. One
factor for all cells of a phase is free, since no emulated rate is that of a real machine; what is
left says whether models and prompt lengths stand to each other as they were published.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys

import compare
import driver
import machine
import predict
import report
import simulator

PUBLISHED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "published.json")
LENGTHS = [512, 1024, 2048, 4096]
DECODE = "tg128@2048"
MOST_DEVIATION = 0.35


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("results", nargs="?", default="build/bench/results.json")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--model-dir", default=os.environ.get("ATS_BENCH_MODELS",
                                                              "build/bench/models"))
    return parser.parse_args()


def published_rates():
    """{(model, phase): (of the system, of llama.cpp by layers)}"""
    with open(PUBLISHED, encoding="utf-8") as f:
        figures = json.load(f)
    rates = {(m, DECODE): (r["system"], r["layers"]) for m, r in figures["decode"].items()}
    for model, r in figures["prefill"].items():
        for i, n in enumerate(LENGTHS):
            rates[model, f"pp{n}"] = (r["system"][i], r["layers"][i])
    return rates


def whole_rate(program, model, phase):
    """Tokens/s of llama.cpp by layers, simulated: the whole model on its own machine."""
    rig = machine.RIG_OF[model]
    ubatch = str(machine.PLATFORMS[rig]["ubatch"])
    command = [program, "simulate", model, "--rig", rig, "--policy", "layers", "--json",
               "--ctx", str(compare.CONTEXT), "--ubatch", ubatch, "--batch", ubatch]
    done = subprocess.run(command + simulator.phase_arguments(phase), capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        raise driver.Failed(done.stderr.strip())
    return json.loads(done.stdout)["results"][0]["phases"][0]["tokens_per_s"]


def print_ratios(cells, published):
    print(f"{'ratio to llama.cpp by layers':<36}{'published':>10}{'here':>7}{'':>4}"
          f"{'to its best':>12}")
    n_reached = 0
    for cell in cells:
        top = cell["systems"]["dynamic"]["tokens_per_s"]
        system, layers = published[cell["model"], cell["phase"]]
        here = top / cell["systems"]["layers"]["tokens_per_s"]
        best = top / cell["systems"]["best"]["tokens_per_s"]
        reached = here >= system / layers
        n_reached += reached
        print(f"  {cell['model']:<20}{cell['phase']:<14}{system / layers:>10.2f}{here:>7.2f}"
              f"{'' if reached else ' <':<4}{best:>12.2f}")
    print(f"{n_reached} of {len(cells)} cells reach the published ratio")


def shape_rows(cells, published, arguments, results):
    """[(model, phase, published, here for the whole model)]"""
    simulated = simulator.Simulator(arguments.build)
    rows = []
    machines = {}
    for cell in cells:
        model, phase = cell["model"], cell["phase"]
        if model not in machines:
            path = os.path.join(arguments.model_dir, model + ".gguf")
            machines[model] = predict.machine_of(model, path, results, arguments)
        measured = cell["systems"]["layers"]
        scaled = simulated.tokens_per_s(machines[model], "layers", True, phase, measured["scale"])
        whole = whole_rate(simulated.program, model, phase)
        rows.append((model, phase, published[model, phase][1],
                     measured["tokens_per_s"] * whole / scaled))
    return rows


def print_shape(rows):
    print(f"\n{'llama.cpp by layers, tokens/s':<36}{'published':>10}{'here':>9}{'off by':>10}")
    far = 0
    for kind in ("pp", "tg"):
        chosen = [r for r in rows if r[1].startswith(kind)]
        if not chosen:
            continue
        factor = math.exp(statistics.mean(math.log(here / there) for _, _, there, here in chosen))
        for model, phase, there, here in chosen:
            off = here / there / factor - 1
            is_far = off > MOST_DEVIATION or off < 1 / (1 + MOST_DEVIATION) - 1
            far += is_far
            print(f"  {model:<20}{phase:<14}{there:>10.1f}{here:>9.1f}{100 * off:>+9.0f}%"
                  f"{' *' if is_far else ''}")
        print(f"  a common factor of {factor:.2f} is taken out of these")
    print(f"{len(rows) - far} of {len(rows)} cells have the published shape within "
          f"{100 * MOST_DEVIATION:.0f} %")


def main():
    arguments = parse_arguments()
    results = report.read(arguments.results, "make bench")
    published = published_rates()
    cells = [c for c in results["cells"] if (c["model"], c["phase"]) in published and
             {"dynamic", "layers", "best"} <= set(c["systems"])]
    if not cells:
        sys.exit(f"published: {arguments.results} has none of the published cells; `make bench` "
                 "measures them")
    print_ratios(cells, published)
    if results.get("emulated"):
        try:
            print_shape(shape_rows(cells, published, arguments, results))
        except driver.Failed as failure:
            sys.exit(f"published: {failure}")
        print("Emulated rigs: ratios stand for real machines, tokens/s are estimates.")


if __name__ == "__main__":
    main()
