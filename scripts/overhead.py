#!/usr/bin/env python3
"""The cost of being there: llama-bench with and without ATS in between.

Two pairs, each measured in one run with alternated order: plain CPU against ATS0 with
everything on the CPU, and Vulkan (Mesa's llvmpipe where there is no GPU) against ATS0 with
everything on Vulkan. Prints medians, spreads and ratios; exits with 1 if a median ratio is
outside its bound. Called by `make overhead`.

The model's weights are Q8_0: plain CPU runs keep that type as it is on x86-64, while Q4_0
and some others are repacked in memory, which ATS does not do yet.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--llama-bin", required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--vulkan-bin", help="the same with the Vulkan backend in it")
    parser.add_argument("--backend", required=True, help="libggml-ats.so")
    parser.add_argument("--model", required=True, help="GGUF for the CPU pair")
    parser.add_argument("--vulkan-model", help="GGUF for the Vulkan pair")
    parser.add_argument("--rounds", type=int, default=9, help="alternated rounds per pair")
    parser.add_argument("--json", help="write the samples to this file")
    return parser.parse_args()


def llama_bench(folder, device, model, prompt, generate, environment):
    """One llama-bench call: {"prefill": tokens/s, "decode": tokens/s}."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ATS_", "GGML_"))}
    env["LD_LIBRARY_PATH"] = folder
    env.update(environment)
    command = [os.path.join(folder, "llama-bench"), "-m", model, "-dev", device, "-ngl", "99",
               "-p", str(prompt), "-n", str(generate), "-r", "1", "-o", "json",
               "-t", str(os.cpu_count())]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True,
                          timeout=600, check=False)
    if done.returncode != 0:
        sys.exit(f"overhead: {' '.join(command)} failed:\n{done.stderr[-2000:]}")
    rates = {}
    for test in json.loads(done.stdout):
        rates["decode" if test["n_gen"] else "prefill"] = test["avg_ts"]
    return rates


def measure(pair, arguments):
    """Alternates the two sides of a pair; returns {phase: ([plain], [ats])}."""
    samples = {"prefill": ([], []), "decode": ([], [])}
    for side in pair["sides"]:  # page cache, shader caches
        llama_bench(*side)
    for i in range(arguments.rounds):
        order = [0, 1] if i % 2 == 0 else [1, 0]
        for k in order:
            rates = llama_bench(*pair["sides"][k])
            for phase, rate in rates.items():
                samples[phase][k].append(rate)
        print(f"\r{pair['name']}: round {i + 1} of {arguments.rounds}", end="", file=sys.stderr,
              flush=True)
    print(file=sys.stderr)
    return samples


def spread(values):
    """Half the distance between the quartiles, relative to the median."""
    low, _, high = statistics.quantiles(values, n=4)
    return 50 * (high - low) / statistics.median(values)


def report(pair, samples):
    within = True
    for phase, (plain, ats) in samples.items():
        # rounds are paired, so drift of the machine cancels in the ratios
        ratio = statistics.median(a / p for a, p in zip(ats, plain))
        good = ratio >= 1 - pair["bound"]
        within = within and good
        print(f"{pair['name']:<8} {phase:<8} {statistics.median(plain):9.2f} {spread(plain):5.1f} "
              f"{statistics.median(ats):9.2f} {spread(ats):5.1f} {ratio:7.3f} "
              f">= {1 - pair['bound']:.2f} {'ok' if good else 'MISSED'}")
    return within


def pairs(arguments):
    """What is compared: for each pair the arguments of llama_bench for plain and for ATS0."""
    ats = {"GGML_BACKEND_PATH": os.path.abspath(arguments.backend)}
    folder, model = arguments.llama_bin, os.path.abspath(arguments.model)
    # an accelerator must be there for ATS0 to exist; nothing is placed on it
    on_cpu = dict(ats, ATS_EMULATE="emu-small", ATS_PLACEMENT="host")
    yield {"name": "CPU", "bound": 0.02, "sides": [(folder, "none", model, 256, 64, {}),
                                                   (folder, "ATS0", model, 256, 64, on_cpu)]}
    if arguments.vulkan_bin:
        folder = arguments.vulkan_bin
        model = os.path.abspath(arguments.vulkan_model or arguments.model)
        # llvmpipe allocates the frames of each workgroup anew. Where glibc maps such blocks
        # one by one, some operators take six times as long, and glibc stops mapping them
        # after the program has freed a larger block: by chance, so both sides get the same.
        plain = {"GGML_VK_VISIBLE_DEVICES": "0", "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
                 "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
        on_vulkan = dict(ats, ATS_ACCEL="Vulkan0", ATS_PLACEMENT="vram", **plain)
        yield {"name": "Vulkan", "bound": 0.03,
               "sides": [(folder, "Vulkan0", model, 64, 32, plain),
                         (folder, "ATS0", model, 64, 32, on_vulkan)]}


def main():
    arguments = parse_arguments()
    all_within = True
    everything = {}
    print("Tokens/s, medians of alternated rounds; +-%: half the quartile distance.")
    print(f"{'':<8} {'':<8} {'plain':>9} {'+-%':>5} {'ATS0':>9} {'+-%':>5} {'ratio':>7} bound")
    for pair in pairs(arguments):
        samples = measure(pair, arguments)
        everything[pair["name"]] = samples
        all_within = report(pair, samples) and all_within
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump(everything, out, indent=2)
    sys.exit(0 if all_within else 1)


if __name__ == "__main__":
    main()
