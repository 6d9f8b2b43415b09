"""From runs to cells, and from cells to tables and charts.

A cell is one phase of one model: prefill of n tokens or decode at a depth. For each system it
has the samples of all rounds; figures are medians over rounds, and the spread is half the
distance between the quartiles (with two rounds: half their distance), in percent.
"""

import itertools
import json
import math
import os
import statistics
import sys

import driver

SERIES = [("layers", "llama.cpp by layers"), ("best", "llama.cpp at its best"),
          ("placement", "ATS, placement"), ("async", "ATS, + asynchronous"),
          ("dynamic", "ATS, + dynamic transfer")]
LEVELS = ("placement", "async", "dynamic")
# a prompt of fewer tokens is a short one: the time to its first token is what people see
LONG_PROMPT = 512
KINDS = {"short": "short prompts", "prefill": "prefill", "decode": "decode"}
COLOURS = {"layers": "#b8b8b8", "best": "#6f7d8c", "placement": "#a9cdf0", "async": "#4a90d9",
           "dynamic": "#174f8c"}


def spread(values):
    if len(values) < 2:
        return 0.0
    if len(values) < 4:
        return 50 * (max(values) - min(values)) / statistics.median(values)
    low, _, high = statistics.quantiles(values, n=4)
    return 50 * (high - low) / statistics.median(values)


def phase_name(test):
    return f"pp{test['tokens']}" if test["phase"] == "prefill" else \
        f"tg{test['tokens']}@{test['depth']}"


def kind_of(cell):
    """A key of KINDS."""
    if cell["phase"].startswith("tg"):
        return "decode"
    return "short" if int(cell["phase"][len("pp"):]) < LONG_PROMPT else "prefill"


def parts(test):
    """How many prompts or tokens the counters are about."""
    return test["all_tokens"] / (test["tokens"] if test["phase"] == "prefill" else 1)


def figures(tests):
    """What one system did in one cell, over its rounds."""
    rates = [t["tokens_per_s"] for t in tests]
    cell = {"tokens_per_s": statistics.median(rates), "spread_percent": spread(rates),
            "samples": rates, "disturbed": [t["disturbed"] for t in tests]}
    counted = [(t, driver.emulated(t)) for t in tests if driver.emulated(t)]
    if counted:
        def median(of):
            return statistics.median(of(t, c) for t, c in counted)
        cell["device_busy"] = median(lambda t, c: c["compute_us"] / (1e6 * t["all_seconds"]))
        cell["link_busy"] = median(lambda t, c: c["link_us"] / (1e6 * t["all_seconds"]))
        cell["overlap"] = median(lambda t, c: c["both_us"] /
                                 max(1, min(c["link_us"], c["compute_us"])))
        cell["link_gbps"] = median(lambda t, c: (c["bytes_h2d"] + c["bytes_d2h"]) /
                                   (1e9 * t["all_seconds"]))
        cell["synchronizations"] = median(lambda t, c: c["synchronizations"] / parts(t))
        cell["host_us"] = median(lambda t, c: (c["wall_us"] - c["in_use_us"]) / parts(t))
        cell["device_splits"] = median(lambda t, c: c["graphs"] / parts(t))
        cell["scale"] = counted[0][1]["scale"]
    return cell


# in decode of models with experts placement and async do the same work
MOST_EQUAL_DIFFERENCE = 0.05


def noise_note(cells):
    """A line on the decode cells whose equal levels differ, or None."""
    differences = [abs(c["systems"]["placement"]["tokens_per_s"] /
                       c["systems"]["async"]["tokens_per_s"] - 1) for c in cells
                   if kind_of(c) == "decode" and c["experts"] and
                   {"placement", "async"} <= set(c["systems"])]
    many = [d for d in differences if d > MOST_EQUAL_DIFFERENCE]
    if not many:
        return None
    return (f"Noise of this host: {len(many)} of {len(differences)} decode cells differ by up to "
            f"{100 * max(many):.0f} %\nbetween placed and async, which do the same work there.")


# two runs of the same cell are to agree within this
AGREEMENT = 0.03


def repeat_note(cells):
    """Lines on how well runs of the same cell agree: processes of their own, minutes apart."""
    lines = []
    for kind, name in KINDS.items():
        pairs = [(abs(a - b) / statistics.mean((a, b)), cell, system)
                 for cell in cells if kind_of(cell) == kind
                 for system, f in cell["systems"].items()
                 if system != "best" or f["way"] != cell["systems"]["layers"]["way"]
                 for a, b in itertools.combinations(f["samples"], 2)]
        if pairs:
            worst = max(pairs, key=lambda p: p[0])
            within = sum(d <= AGREEMENT for d, _, _ in pairs)
            lines.append(f"runs of a cell, {name}: {within} of {len(pairs)} pairs agree within "
                         f"{100 * AGREEMENT:.0f} %, median "
                         f"{100 * statistics.median(d for d, _, _ in pairs):.1f} %,\n  worst "
                         f"{100 * worst[0]:.1f} % ({worst[1]['model']} {worst[1]['phase']}, "
                         f"{dict(SERIES)[worst[2]]})")
    return lines


def read(path, made_by):
    """The results of a file; ends the process if it is none."""
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}; `{made_by}` writes it")


def geometric_mean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else float("nan")


def cells_of(results):
    """[{model, phase, systems: {name: figures}}] in order."""
    cells = []
    for model, entry in results["models"].items():
        phases = {}
        for system, runs in entry["systems"].items():
            for run in runs:
                for test in run["tests"]:
                    by_system = phases.setdefault(phase_name(test), {})
                    by_system.setdefault(system, []).append(test)
        for phase, by_system in phases.items():
            systems = {s: figures(tests) for s, tests in by_system.items()}
            if entry["baseline"] not in systems:
                continue  # all its samples were late
            rivals = [s for s in systems if s.startswith("stock")]
            baseline = entry["baseline"]
            systems["layers"] = dict(systems[baseline], way=entry["ways"][baseline])
            best = max(rivals, key=lambda s: systems[s]["tokens_per_s"])
            systems["best"] = dict(systems[best], way=entry["ways"][best])
            cells.append({"model": model, "phase": phase, "experts": entry["experts"],
                          "bound": entry.get("bound", {}).get(phase),
                          "systems": {s: systems[s] for s, _ in SERIES if s in systems}})
    return cells


def ats_of(cell):
    """The highest level of ATS that was measured."""
    return next((s for s, _ in reversed(SERIES) if s in cell["systems"] and
                 s not in ("layers", "best")), None)


def ratio(cell, system, rival):
    return cell["systems"][system]["tokens_per_s"] / cell["systems"][rival]["tokens_per_s"]


def of_bound(cell):
    """The share of the physical bound that the highest level reaches, as text."""
    top = ats_of(cell)
    return f"{100 * cell['systems'][top]['tokens_per_s'] / cell['bound']:.0f} %" \
        if top and cell["bound"] else "-"


def ablation(cells):
    """[(kind, {system: {"layers": geometric mean of ratios, "best": ..}})] over the cells that have
    all levels."""
    rows = []
    for kind, name in KINDS.items():
        chosen = [c for c in cells if kind_of(c) == kind and
                  set(LEVELS) <= set(c["systems"])]
        if chosen:
            rows.append((name, {s: {r: geometric_mean([ratio(c, s, r) for c in chosen])
                                    for r in ("layers", "best")} for s, _ in SERIES}))
    return rows


def table(cells, emulated):
    """At most 80 columns."""
    lines = [f"{'':<14}{'llama.cpp tokens/s':>18}{'ATS tokens/s':>24}{'ratio to':>12}{'of':>6}"
             f"{'+-%':>5}",
             f"{'':<14}{'layers':>9}{'best':>9}{'placed':>8}{'async':>8}{'dynamic':>8}"
             f"{'layers':>7}{'best':>5}{'bound':>6}{'':>5}"]
    model = None
    for cell in cells:
        if cell["model"] != model:
            model = cell["model"]
            lines.append(model)
        systems = cell["systems"]
        numbers = [systems[s]["tokens_per_s"] if s in systems else None for s, _ in SERIES]
        texts = [f"{n:.2f}" if n is not None and n < 100 else "-" if n is None else f"{n:.0f}"
                 for n in numbers]
        top = ats_of(cell)
        ratios = [f"{ratio(cell, top, r):.2f}" if top else "-" for r in ("layers", "best")]
        most = max(f["spread_percent"] for f in systems.values())
        lines.append(f"  {cell['phase']:<12}" + "".join(f"{t:>9}" for t in texts[:2]) +
                     "".join(f"{t:>8}" for t in texts[2:]) +
                     f"{ratios[0]:>7}{ratios[1]:>5}{of_bound(cell):>6}{most:>5.1f}")
    for name, means in ablation(cells):
        lines.append(f"geometric mean, {name}")
        for rival in ("layers", "best"):
            lines.append(f"{'  ratio to ' + rival:<32}" +
                         "".join(f"{means[s][rival]:>8.2f}" for s in LEVELS))
    for kind in KINDS:
        chosen = [c for c in cells if kind_of(c) == kind and ats_of(c)]
        if not chosen:
            continue
        worst = min(chosen, key=lambda c: ratio(c, ats_of(c), "best"))
        lines.append(f"worst: {worst['model']} {worst['phase']}, "
                     f"{ratio(worst, ats_of(worst), 'best'):.2f} of llama.cpp at its best "
                     f"({worst['systems']['best']['way']})")
    lines += repeat_note(cells)
    note = noise_note(cells)
    if note:
        lines.append(note)
    if emulated:
        lines.append("Emulated accelerator: ratios stand for the real machine's, tokens/s do not.")
    return "\n".join(lines)


def markdown(cells, results):
    lines = ["| model | cell | llama.cpp by layers | at its best | ATS placement | ATS async | "
             "ATS dynamic | to layers | to best | of bound | device busy | link busy | overlap | "
             "link GB/s | "
             "splits | syncs |",
             "| --- | --- " + "| ---: " * 14 + "|"]
    for cell in cells:
        systems = cell["systems"]
        top = ats_of(cell)
        def text(system):
            if system not in systems:
                return "-"
            shown = systems[system]
            return f"{shown['tokens_per_s']:.2f} ± {shown['spread_percent']:.1f} %"
        best = f"{text('best')} ({systems['best']['way']})"
        shown = systems[top or "best"]
        extras = [f"{shown[k]:.2f}" if k in shown else "-" for k in
                  ("device_busy", "link_busy", "overlap", "link_gbps")]
        extras += [f"{shown[k]:.0f}" if k in shown else "-" for k in
                   ("device_splits", "synchronizations")]
        ratios = [f"{ratio(cell, top, r):.2f}" if top else "-" for r in ("layers", "best")]
        lines.append(f"| {cell['model']} | {cell['phase']} | {text('layers')} | {best} | " +
                     " | ".join([text(level) for level in LEVELS] + ratios + [of_bound(cell)] +
                                extras) + " |")
    lines += ["", "Geometric means of ratios:", "",
              "| | by layers | at its best | ATS placement | ATS async | ATS dynamic |",
              "| --- " + "| ---: " * 5 + "|"]
    for name, means in ablation(cells):
        for rival, words in (("layers", "by layers"), ("best", "at its best")):
            lines.append(f"| {name}, to llama.cpp {words} | " + " | ".join(
                f"{means[s][rival]:.2f}" for s, _ in SERIES) + " |")
    lines.append("")
    kind = "Emulated" if results["emulated"] else "Measured on"
    lines.append(f"{kind}: " + "; ".join(f"{model}: {entry['machine']}" for model, entry in
                                         results["models"].items()) + ".")
    lines.append("Splits and synchronisations are the device's: per pass over the whole prompt in "
                 "prefill, per token in decode.")
    for note in repeat_note(cells):
        lines += ["", note[0].upper() + note[1:].replace("\n", "") + "."]
    note = noise_note(cells)
    if note:
        lines += ["", note.replace("\n", " ")]
    return "\n".join(lines) + "\n"


def chart(cells, title):
    """An SVG of bars: per cell one group, each bar relative to llama.cpp at its best."""
    bar, gap, height, left, top = 9, 14, 220, 46, 46
    group = bar * len(SERIES) + gap
    width = left + max(group * len(cells), 150 * len(SERIES)) + 20
    most = max(1.2, max(ratio(c, s, "best") for c in cells for s in c["systems"]))
    scale = height / most
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height + 190}" '
           'font-family="sans-serif" font-size="11">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="18" font-size="13">{title}</text>']
    for i, (system, name) in enumerate(SERIES):
        x = left + i * 150
        out.append(f'<rect x="{x}" y="27" width="10" height="10" fill="{COLOURS[system]}"/>'
                   f'<text x="{x + 14}" y="36">{name}</text>')
    step = 0.5 if most <= 4 else 1.0
    for k in range(int(most / step) + 1):
        y = top + height - k * step * scale
        out.append(f'<line x1="{left}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}" '
                   'stroke="#e4e4e4"/>'
                   f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{k * step:g}</text>')
    for i, cell in enumerate(cells):
        x = left + i * group + gap / 2
        for k, (system, _) in enumerate(SERIES):
            if system in cell["systems"]:
                h = ratio(cell, system, "best") * scale
                out.append(f'<rect x="{x + k * bar:.1f}" y="{top + height - h:.1f}" '
                           f'width="{bar - 1}" height="{h:.1f}" fill="{COLOURS[system]}"/>')
        middle = x + bar * len(SERIES) / 2
        out.append(f'<text transform="translate({middle:.1f},{top + height + 8}) rotate(60)">'
                   f'{cell["model"]} {cell["phase"]}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def write(results, folder):
    """results.json, results.md and one chart per kind of cell; returns the terminal's table."""
    cells = cells_of(results)
    os.makedirs(folder, exist_ok=True)
    files = {"results.json": json.dumps(
        {"emulated": results["emulated"], "cells": cells,
         "models": {m: {k: e[k] for k in ("machine", "ways", "sweep", "late", "experts")}
                    for m, e in results["models"].items()}}, indent=1) + "\n",
             "results.md": markdown(cells, results)}
    for kind, name in KINDS.items():
        chosen = [c for c in cells if kind_of(c) == kind]
        if chosen:
            label = "emulated, " if results["emulated"] else ""
            files[f"{kind}.svg"] = chart(chosen, f"{name.capitalize()}, {label}relative to "
                                         "llama.cpp at its best")
    means = [{"model": "", "phase": name, "systems": {
        s: {"tokens_per_s": m[s]["best"]} for s, _ in SERIES}} for name, m in ablation(cells)]
    if means:
        label = "emulated, " if results["emulated"] else ""
        files["ablation.svg"] = chart(means, "Each mechanism on top of the others, geometric mean "
                                      f"of all cells, {label}relative to llama.cpp at its best")
    for name, text in files.items():
        path = os.path.join(folder, name)
        with open(path + ".part", "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(path + ".part", path)
    return table(cells, results["emulated"])
