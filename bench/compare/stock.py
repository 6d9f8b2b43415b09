"""llama.cpp alone, at its best: the ways to run a model that its users would try.

`layers` is the published baseline: as many whole layers on the device as fit. The others are
its automatic fit, expert weights of the first layers on the CPU, one layer fewer, and each of
them with the weights read into pinned memory instead of mapped.

Repacked CPU weights (--no-host) are swept too, for decode alone: prefill with them runs on the
CPU, an order of magnitude slower, so they are no way to run a prompt. The sweep's figure is
kept in the results.
"""

import re
import subprocess

import driver

# llama.cpp's default for --fit-target, on the whole machine
FIT_MARGIN_MIB = 1024
REPACK = "repack"


def find_layers(drive, machine, device):
    """The most layers (the output layer counts as one) that load."""
    for n in range(machine.layers + 1, -1, -1):
        if drive.fits(machine, ["--device", device, "-g", str(n)]):
            return n
    raise driver.Failed(f"{machine.model} does not load on {device} even without layers there")


def find_cpu_moe(drive, machine, device):
    """The fewest layers whose experts must stay on the CPU if all else is on the device; None
    if that does not load."""
    for n in range(0, machine.layers + 1):
        if drive.fits(machine, ["--device", device, "--n-cpu-moe", str(n)]):
            return n
    return None


def fit_arguments(drive, machine, device, program):
    """What llama.cpp's own fitting chooses, as arguments of the driver; None if it cannot. Its
    margin is scaled as the machine's VRAM is."""
    whole = machine.whole_vram or machine.vram
    margin = max(1, FIT_MARGIN_MIB * machine.vram // whole)
    command = [program, "-m", machine.path, "--device", device, "-c", str(machine.context),
               "-ub", str(machine.ubatch), "-b", str(machine.ubatch), "-fitt", str(margin)]
    env = machine.environment(drive.backend)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300,
                          check=False)
    layers = re.search(r"-ngl (-?\d+)", done.stdout)
    if done.returncode != 0 or layers is None:
        return None
    arguments = ["--device", device]
    if int(layers.group(1)) >= 0:
        arguments += ["-g", layers.group(1)]
    overrides = re.search(r'-ot "([^"]*)"', done.stdout)
    for override in overrides.group(1).split(",") if overrides else []:
        arguments += ["--override", override]
    return arguments


def candidates(drive, machine, device, fit_program):
    """{name: arguments}; the first is the baseline by layers."""
    layers = find_layers(drive, machine, device)
    ways = {f"ngl={layers}": ["--device", device, "-g", str(layers)]}
    if layers > 1:
        ways[f"ngl={layers - 1}"] = ["--device", device, "-g", str(layers - 1)]
    if machine.experts:
        n = find_cpu_moe(drive, machine, device)
        if n is not None:
            ways[f"ncmoe={n}"] = ["--device", device, "--n-cpu-moe", str(n)]
    fit = fit_arguments(drive, machine, device, fit_program)
    if fit is not None and fit not in ways.values():
        ways["fit"] = fit
    variants = dict(ways)
    for name, arguments in ways.items():
        variants[name + ",no-mmap"] = arguments + ["--load", "none"]
    variants[REPACK] = [*ways.values()][-1] + ["--load", "none", "--no-host"]
    return variants


def sweep(drive, machine, ways):
    """A short run of each way: {name: (prefill, decode)} in tokens/s."""
    prompt = str(machine.ubatch)
    rates = {}
    for name, arguments in ways.items():
        try:
            short = ["--ubatch", "64", "--depth", "64"] if name == REPACK else \
                ["--prefill", prompt, "--depth", prompt]
            result = drive.run(machine, arguments + short + ["--decode", "12"])
        except driver.Failed:
            continue
        by_phase = {t["phase"]: t["tokens_per_s"] for t in result["tests"]}
        rates[name] = (by_phase["prefill"], by_phase["decode"])
    return rates
