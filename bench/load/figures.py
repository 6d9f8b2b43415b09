"""From runs to figures. A run is what the driver printed for one policy: a list of phases, each
with the times of its tokens (measure.h). Nothing here starts anything."""

import statistics

POLICIES = ("static", "adaptive")
# recovered: so many tokens in a row within so much of the median without load
RECOVERED_TOKENS = 5
RECOVERED_WITHIN = 0.05
MOST_RECOVERY_S = 2.0
# without load the policies differ by less than
MOST_DIFFERENCE = 0.01
# what the other process takes of the CPU, against what it is to take
MOST_OFF_PERCENT = 3.0
# a load that slows the static policy by less than this says nothing about the other one
LEAST_RISE = 0.02
# of a phase's tokens, undisturbed ones count if there are at least so many
LEAST_SHARE = 0.2


def chosen(phase, skip_s=0.0):
    """Indices of the tokens that count: those with the core to themselves, if there are enough."""
    tokens = phase["tokens"]
    late = [i for i, begin in enumerate(tokens["begin_s"]) if begin >= phase["begin_s"] + skip_s]
    good = [i for i in late if tokens["undisturbed"][i]]
    return good if len(good) >= max(1, LEAST_SHARE * len(late)) else late


def median_us(phase, skip_s=0.0):
    times = [phase["tokens"]["us"][i] for i in chosen(phase, skip_s)]
    return statistics.median(times) if times else None


def quiet_before(kinds, index):
    """The last phase without load before this one, or None."""
    return next((i for i in range(index - 1, -1, -1) if kinds[i] == "quiet"), None)


def rise(run, kinds, index):
    """By how much a token takes longer than in the quiet phase before: 0.25 is a quarter."""
    base = quiet_before(kinds, index)
    loaded = median_us(run[index])
    quiet = median_us(run[base]) if base is not None else None
    return loaded / quiet - 1 if loaded and quiet else None


def recovery_s(run, kinds, index):
    """From the end of the load in this phase to the beginning of the first of the tokens in a row
    that take no longer than they did before it; None if that does not come. A token during which
    the core was somebody else's neither counts nor breaks the row."""
    base = quiet_before(kinds, index)
    if base is None or index + 1 >= len(run) or kinds[index + 1] != "quiet":
        return None
    most_us = (1 + RECOVERED_WITHIN) * median_us(run[base])
    after = run[index + 1]
    row = []
    for i in chosen(after):
        if after["tokens"]["us"][i] > most_us:
            row = []
            continue
        row.append(after["tokens"]["begin_s"][i])
        if len(row) == RECOVERED_TOKENS:
            return row[0] - run[index]["end_s"]
    return None


def quiet_us(run, kinds):
    """Of all phases without load; behind a load, from when recovery has to be over."""
    times = []
    for i, phase in enumerate(run):
        if kinds[i] == "quiet":
            skip_s = MOST_RECOVERY_S if i > 0 and kinds[i - 1] != "quiet" else 0.0
            times += [phase["tokens"]["us"][t] for t in chosen(phase, skip_s)]
    return statistics.median(times) if times else None


def paired_difference(static, adaptive):
    """Of two runs that decoded the same tokens at the same depths: the median of the tokens'
    ratios, less one."""
    ratios = []
    for a, b in zip(static, adaptive):
        both = sorted(set(chosen(a)) & set(chosen(b)))
        ratios += [b["tokens"]["us"][i] / a["tokens"]["us"][i] for i in both]
    return statistics.median(ratios) - 1 if ratios else None


def counted(run, name):
    """A counter of the ATS device over all phases; None if it has none of that name."""
    values = [device[name] for phase in run for key, device in phase["counters"].items()
              if key.startswith("ATS") and name in device]
    return sum(values) if values else None


def summary(values):
    """Median and spread (half the distance of the quartiles, or of the extremes if there are
    fewer than four; None of one) of the samples; None if one of them is missing."""
    if not values or any(v is None for v in values):
        return {"median": None, "spread": None, "samples": values}
    if len(values) < 4:
        spread = (max(values) - min(values)) / 2 if len(values) > 1 else None
    else:
        low, _, high = statistics.quantiles(values, n=4)
        spread = (high - low) / 2
    return {"median": statistics.median(values), "spread": spread, "samples": values}


def smaller(static, adaptive):
    """By which share the rise is smaller with adaptation."""
    return 1 - adaptive / static if None not in (static, adaptive) and static >= LEAST_RISE \
        else None


def phase_figures(pairs, kinds, index):
    """Of one phase: {figure: {policy: summary}}; for phases with load also "smaller"."""
    def of(function):
        return {p: summary([function(pair[p]) for pair in pairs]) for p in POLICIES}
    figures = {"kind": kinds[index],
               "ms": of(lambda run: (median_us(run[index]) or 0) / 1e3 or None),
               "disturbed": of(lambda run: run[index]["disturbed"])}
    if kinds[index] == "quiet":
        return figures
    figures["rise"] = of(lambda run: rise(run, kinds, index))
    figures["smaller"] = summary([smaller(*(rise(pair[p], kinds, index) for p in POLICIES))
                                  for pair in pairs])
    if index + 1 < len(kinds) and kinds[index + 1] == "quiet":
        figures["recovery_s"] = of(lambda run: recovery_s(run, kinds, index))
    if kinds[index] == "cpu":
        figures["cpu_taken_percent"] = of(lambda run: 100 * run[index]["cpu_taken"])
        figures["cpu_lost_percent"] = of(lambda run: 100 * (1 - run[index]["own_cpu"]))
    return figures


def figures(pairs, kinds, is_long=False):
    """`pairs`: one {policy: run} for each repeat."""
    def difference(pair):
        if is_long:
            return paired_difference(pair["static"], pair["adaptive"])
        quiet = {p: quiet_us(pair[p], kinds) for p in POLICIES}
        return quiet["adaptive"] / quiet["static"] - 1 if all(quiet.values()) else None
    return {"phases": [phase_figures(pairs, kinds, i) for i in range(len(kinds))],
            "difference_without_load": summary([difference(pair) for pair in pairs]),
            **{name: {p: summary([counted(pair[p], name) for pair in pairs]) for p in POLICIES}
               for name in ("replans", "rollbacks")}}


def check(what, value, text, ok):
    return {"what": what, "value": value, "bound": text, "ok": bool(value is not None and ok)}


def worst(samples):
    return None if not samples or None in samples else max(samples)


def checks(result, phases, bounds, with_thread):
    """What has to hold, and whether it does. `with_thread`: the driver computes with one thread,
    which has all of its core's time without load (it waits by spinning), so that what it has not
    is what it lost."""
    listed = []
    for phase, f in zip(phases, result["phases"]):
        label = phase.label()
        if phase.kind in bounds:
            value = f["smaller"]["median"]
            listed.append(check(f"{label}: the rise is smaller", value,
                                f"at least {100 * bounds[phase.kind]:.0f} %",
                                value is not None and value >= bounds[phase.kind]))
        elif "rise" in f:
            value = [f["rise"][p]["median"] for p in POLICIES]
            more = None if None in value else value[1] - value[0]
            listed.append(check(f"{label}: the rise is no larger", more, "at most 1 point more",
                                more is not None and more <= MOST_DIFFERENCE))
        if "recovery_s" in f:
            value = worst(f["recovery_s"]["adaptive"]["samples"])
            listed.append(check(f"after {label}: recovered", value,
                                f"within {MOST_RECOVERY_S:g} s",
                                value is not None and value < MOST_RECOVERY_S))
        for name in ("cpu_taken_percent", "cpu_lost_percent") if "cpu_taken_percent" in f else ():
            if name == "cpu_lost_percent" and not with_thread:
                continue
            off = worst([abs(v - phase.cpu[0]) for p in POLICIES for v in f[name][p]["samples"]])
            who = "taken" if name == "cpu_taken_percent" else "lost by the driver"
            listed.append(check(f"{label}: {who}, off by", off,
                                f"at most {MOST_OFF_PERCENT:g} points",
                                off is not None and off <= MOST_OFF_PERCENT))
    value = result["difference_without_load"]["median"]
    listed.append(check("without load: the difference", value,
                        f"under {100 * MOST_DIFFERENCE:g} %",
                        value is not None and abs(value) < MOST_DIFFERENCE))
    return listed


# ---- over time ----

def position(phase, index, start, unit):
    """Where a token is on the time axis: phases begin where they were to begin."""
    return start + (index if unit == "t" else
                    phase["tokens"]["begin_s"][index] - phase["begin_s"])


def series(pairs, policy, experiment, n_bins):
    """Median time per token, in ms, in each of so many equal parts of the axis, over all repeats;
    None where there is no token."""
    starts = experiment.starts()
    bins = [[] for _ in range(n_bins)]
    for pair in pairs:
        for phase, spec, start, end in zip(pair[policy], experiment.phases, starts, starts[1:]):
            for i in chosen(phase):
                at = position(phase, i, start, spec.unit)
                if at < end:
                    bins[min(n_bins - 1, int(at / starts[-1] * n_bins))].append(
                        phase["tokens"]["us"][i] / 1e3)
    return [statistics.median(b) if b else None for b in bins]
