"""llama.cpp alone, at its best: the ways to run a model that its users would try.

`layers` is the published baseline: as many whole layers on the device as fit. The others are
its automatic fit, expert weights of the first layers on the CPU, one layer fewer, and each of
them with the weights read into pinned memory instead of mapped.

Repacked CPU weights (--no-host) can be the best in decode: prefill with them runs on the CPU, an
order of magnitude slower, so they are no way to run a prompt. They are swept at the same depth as
the others, filled in small passes, and measured in decode alone.
"""

import re
import subprocess

import driver

# llama.cpp's default for --fit-target, on the whole machine
FIT_MARGIN_MIB = 1024
FIT_TIMEOUT_S = 300
REPACK = ",repack"
REPACK_UBATCH = "64"
SWEEP_DEPTH = "512"
SWEEP_DECODE = "12"
# the sweep is short: a way this close to the fastest may be the fastest
NEAR = 0.9


def is_repack(way):
    """A way that is measured in decode alone."""
    return way.endswith(REPACK)


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
    if not machine.emulated:
        driver.say("llama.cpp's own fitting is left out: it would not see the cap of the memory")
        return None
    env = dict(driver.plain_environment(), **machine.environment(drive.backend))
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True,
                              timeout=FIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as failure:
        driver.say(f"llama.cpp's own fitting is left out: {failure}")
        return None
    layers = re.search(r"-ngl (-?\d+)", done.stdout)
    if done.returncode != 0 or layers is None:
        driver.say(f"llama.cpp's own fitting is left out: it ended with {done.returncode}: " +
                   driver.reason(done.stderr))
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
    same = [name for name, arguments in ways.items() if arguments == fit]
    if same:
        driver.say(f"llama.cpp's own fitting chooses {same[0]}")
    elif fit is not None:
        ways["fit"] = fit
    variants = dict(ways)
    for name, arguments in ways.items():
        variants[name + ",no-mmap"] = arguments + ["--load", "none"]
    return variants


def phase_arguments(way, arguments):
    """Arguments for decoding a repacked way, which prompts only fill the context for."""
    return arguments + ["--ubatch", REPACK_UBATCH] if is_repack(way) else arguments


def try_way(drive, machine, name, arguments):
    """A short run: {"prefill": tokens/s, "decode": tokens/s, "lag": share}, or {"failed": why}."""
    lengths = ["--depth", SWEEP_DEPTH, "--decode", SWEEP_DECODE]
    only = "decode" if is_repack(name) else None
    if only is None:
        lengths += ["--prefill", str(machine.ubatch)]
    try:
        result = drive.run(machine, phase_arguments(name, arguments) + lengths, only=only)
    except driver.Failed as failure:
        return {"failed": driver.reason(str(failure).split("\n", 1)[-1])}
    rates = {"lag": result["lag"]}
    for test in result["tests"]:
        if test["phase"] == "decode":
            rates["decode"] = test["tokens_per_s"]
        elif test["tokens"] == machine.ubatch:
            rates["prefill"] = test["tokens_per_s"]
    return rates


def describe(name, rates):
    if "failed" in rates:
        return f"{name:<24} left out: {rates['failed']}"
    prefill = f"prefill {rates['prefill']:8.1f}" if "prefill" in rates else " " * 16
    late = f"  {100 * rates['lag']:.0f} % late" if rates["lag"] > driver.MOST_LAG else ""
    return f"{name:<24} {prefill}  decode {rates['decode']:7.2f}{late}"


def sweep(drive, machine, ways):
    """A short run of each way, and of the best in decode with repacked weights, which is added to
    `ways`: {name: what try_way says}."""
    rates = {}
    for name, arguments in ways.items():
        rates[name] = try_way(drive, machine, name, arguments)
        driver.say(describe(name, rates[name]))
    best = best_ways(rates, "decode")
    if best:
        name = best[0].removesuffix(",no-mmap") + REPACK
        arguments = [w for w in ways[best[0]] if w not in ("--load", "none")]
        ways[name] = arguments + ["--load", "none", "--no-host"]
        rates[name] = try_way(drive, machine, name, ways[name])
        driver.say(describe(name, rates[name]))
    return rates


def best_ways(rates, phase):
    """The fastest, and the second if it is near. Ways whose run was late count only if there are
    no others."""
    ran = {n: r for n, r in rates.items() if phase in r}
    in_time = {n: r for n, r in ran.items() if r["lag"] <= driver.MOST_LAG}
    fastest = sorted(in_time or ran, key=lambda n: -ran[n][phase])
    return [n for n in fastest[:2] if ran[n][phase] >= NEAR * ran[fastest[0]][phase]]


def choose(rates, ways):
    """The baseline and the best ways for prefill and for decode, each once: {system: way}."""
    baseline = next(iter(ways))
    if "failed" in rates[baseline]:
        raise driver.Failed(f"the baseline {baseline} does not run: {rates[baseline]['failed']}")
    wanted = [baseline] + best_ways(rates, "prefill") + best_ways(rates, "decode")
    return {f"stock {n}": n for n in dict.fromkeys(wanted)}
