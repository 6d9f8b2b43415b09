#!/usr/bin/env python3
"""What ATS gains by generation of PCIe, predicted for the whole models on the whole machines.

Runs `ats simulate` (docs/simulator.md) for each model on its machine with links of 12, 24 and
50 GB/s (PCIe 3.0, 4.0 and 5.0 x16, pinned) and prints a Markdown table: ATS against llama.cpp by
layers with mmap, and against the best of layers, `--n-cpu-moe` and `--fit`, mapped or pinned.
Predicted, not measured. `make bench-pcie`.
"""

import argparse
import json
import os
import subprocess
import sys

import machine

LINKS = {12: "3.0", 24: "4.0", 50: "5.0"}
RIVALS = ["layers", "moe", "fit"]
ATS = "ats-auto"  # as it decides by itself


def has_experts(model):
    with open(f"models/{model}.json", encoding="utf-8") as f:
        return "experts" in json.load(f)


def simulate(program, model, policies, pinned):
    """{(link, policy, phase): tokens/s}; policies that do not apply are absent."""
    rates = {}
    rig = machine.RIG_OF[model]
    for policy in policies:
        command = [program, "simulate", model, "--rig", rig, "--policy", policy, "--sweep",
                   "link=" + ",".join(map(str, LINKS)), "--prompt", "2048", "--depth", "2048",
                   "--ubatch", str(machine.PLATFORMS[rig]["ubatch"]), "--json"]
        done = subprocess.run(command + (["--no-mmap"] if pinned else []), capture_output=True,
                              text=True, check=False, timeout=300)
        if done.returncode != 0:
            print(f"pcie: {model}, {policy}: {done.stderr.strip()}", file=sys.stderr)
            continue
        for result in json.loads(done.stdout)["results"]:
            for phase in result["phases"]:
                key = (round(result["link_gbps"]), policy, phase["phase"])
                rates[key] = (phase["tokens_per_s"], phase["of_bound"])
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", default="build/release")
    arguments = parser.parse_args()
    program = os.path.join(arguments.build, "bin", "ats")
    print("| model | phase | " + " | ".join(
        f"PCIe {g}: to layers | to best | of bound" for g in LINKS.values()) + " |")
    print("| --- | --- " + "| ---: " * (3 * len(LINKS)) + "|")
    for model in machine.MODELS:
        rivals = RIVALS if has_experts(model) else [r for r in RIVALS if r != "moe"]
        mapped = simulate(program, model, rivals, False)
        pinned = simulate(program, model, rivals + [ATS], True)
        for phase in ("prefill", "decode"):
            cells = []
            for link in LINKS:
                ats, of_bound = pinned[(link, ATS, phase)]
                best = max(rates[key][0] for rates in (mapped, pinned) for key in rates
                           if key[0] == link and key[1] in RIVALS and key[2] == phase)
                layers = mapped[(link, "layers", phase)][0]
                cells += [f"{ats / layers:.2f}", f"{ats / best:.2f}", f"{100 * of_bound:.0f} %"]
            print(f"| {model} | {phase} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
