"""The terminal's table and plot, Markdown, and an SVG chart."""

from figures import POLICIES, series

WIDTH = 80
PLOT_ROWS = 12
NOTED_DISTURBED = 0.1
MARKS = {"static": "+", "adaptive": "o"}
BOTH = "*"
COLOURS = {"static": "#b0563f", "adaptive": "#174f8c"}
SHADES = {"quiet": "#ffffff", "cpu": "#fbeedd", "accel": "#e6edf8", "ramp": "#fbeedd"}
TERMINAL_COLOURS = {"+": "\033[31m", "o": "\033[34m", BOTH: "\033[35m"}
PLAIN = "\033[0m"


def percent(value, digits=1):
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def number(value, digits=1):
    return "-" if value is None else f"{value:.{digits}f}"


def with_spread(summary, scale=1.0, unit="", digits=1):
    if summary["median"] is None:
        return "-"
    spread = "" if summary["spread"] is None else f" ± {scale * summary['spread']:.{digits}f}"
    return f"{scale * summary['median']:.{digits}f}{spread}{unit}"


def value_text(check):
    if check["value"] is None:
        return "no figure"
    if "recovered" in check["what"]:
        return f"{check['value']:.2f} s"
    if "off by" in check["what"]:
        return f"{check['value']:.1f} points"
    return f"{100 * check['value']:.2f} %"


def check_lines(checks):
    return [f"{'ok  ' if c['ok'] else 'MISS'} {c['what']:<41}{value_text(c):>12}  {c['bound']}"
            for c in checks]


def header(result):
    return (f"{result['model']} on {result['machine']}; "
            f"{result['repeats']} repeat{'s' if result['repeats'] != 1 else ''}")


def table(result, experiment):
    """At most 80 columns."""
    lines = [experiment.title + (" (emulated accelerator)" if result["emulated"] else ""),
             header(result),
             f"{'ms per token':<22}{'static':>9}{'adaptive':>10}{'rise':>10}{'':>10}"
             f"{'smaller':>10}{'+-':>7}",
             f"{'':<41}{'static':>10}{'adaptive':>10}"]
    for phase, f in zip(experiment.phases, result["figures"]["phases"]):
        line = f"{phase.label():<22}{number(f['ms']['static']['median'], 2):>9}" \
               f"{number(f['ms']['adaptive']['median'], 2):>10}"
        if "rise" in f:
            s = f["smaller"]
            line += "".join(f"{percent(f['rise'][p]['median']):>10}" for p in POLICIES) + \
                f"{percent(s['median'], 0):>10}{percent(s['spread'], 0):>7}"
        lines.append(line)
    lines += ["", *check_lines(result["checks"])]
    for phase, f in zip(experiment.phases, result["figures"]["phases"]):
        if "cpu_taken_percent" in f:
            taken, lost = (", ".join(number(f[key][p]["median"]) for p in POLICIES)
                           for key in ("cpu_taken_percent", "cpu_lost_percent"))
            lines.append(f"{phase.label()} (static, adaptive): taken {taken}; lost {lost}.")
    return "\n".join(lines + notes(result["figures"]))


def notes(figures):
    """What the ATS device counted, and what the host did meanwhile; a line each."""
    lines = []
    counts = [f"{name} {with_spread(figures[key]['adaptive'])}"
              for key, name in (("replans", "re-plans"), ("rollbacks", "rolled back"))
              if figures[key]["adaptive"]["median"] is not None]
    if counts:
        lines.append("With adaptation, per run: " + ", ".join(counts) + ".")
    disturbed = max(share for f in figures["phases"] if f["kind"] in ("quiet", "accel")
                    for p in POLICIES for share in f["disturbed"][p]["samples"])
    if disturbed > NOTED_DISTURBED:
        lines.append(f"Noise of this host: up to {100 * disturbed:.0f} % of a phase's tokens met a "
                     "disturbed core.")
    return lines


def plot(pairs, experiment, colour):
    """Both policies over time, as wide as a terminal."""
    left = 7
    columns = WIDTH - left - 1
    lines = {p: series(pairs, p, experiment, columns) for p in POLICIES}
    most = max((v for values in lines.values() for v in values if v is not None), default=1.0)
    grid = [[" "] * columns for _ in range(PLOT_ROWS)]
    for policy in POLICIES:
        for x, value in enumerate(lines[policy]):
            if value is not None:
                y = PLOT_ROWS - 1 - min(PLOT_ROWS - 1, int(value / most * PLOT_ROWS))
                grid[y][x] = MARKS[policy] if grid[y][x] in (" ", MARKS[policy]) else BOTH
    out = []
    for y, row in enumerate(grid):
        label = f"{most * (PLOT_ROWS - y) / PLOT_ROWS:.3g}" if y % 3 == 0 else ""
        text = "".join(row).rstrip()
        if colour:
            text = "".join(f"{TERMINAL_COLOURS[c]}{c}{PLAIN}" if c in TERMINAL_COLOURS else c
                           for c in text)
        out.append(f"{label:>{left - 1}}|{text}")
    starts = [round(s / experiment.starts()[-1] * columns) for s in experiment.starts()]
    axis = ["-"] * columns
    names = [" "] * columns
    for phase, start, end in zip(experiment.phases, starts, starts[1:]):
        axis[start] = "+"
        label = phase.label()[:max(0, end - start - 1)]
        names[start:start + len(label)] = label
    unit = "tokens" if experiment.phases[0].unit == "t" else "s"
    out += [" " * (left - 1) + "+" + "".join(axis), " " * left + "".join(names).rstrip(),
            f"ms per token over {experiment.starts()[-1]:g} {unit}: "
            f"{MARKS['static']} static, {MARKS['adaptive']} adaptive, {BOTH} both"]
    return "\n".join(out)


def markdown(result, experiment):
    lines = [f"# {experiment.title}", "",
             ("Emulated accelerator: " if result["emulated"] else "") + header(result) + ".", "",
             "| phase | static, ms per token | adaptive | rise, static | adaptive | "
             "rise smaller by | recovered after, static | adaptive |",
             "| --- " + "| ---: " * 7 + "|"]
    for phase, f in zip(experiment.phases, result["figures"]["phases"]):
        cells = [f"{phase.label()}, {phase.length:g} {'tokens' if phase.unit == 't' else 's'}"]
        cells += [with_spread(f["ms"][p], digits=2) for p in POLICIES]
        cells += [with_spread(f["rise"][p], 100, " %") if "rise" in f else "" for p in POLICIES]
        cells.append(with_spread(f["smaller"], 100, " %", 0) if "rise" in f else "")
        cells += [with_spread(f["recovery_s"][p], 1, " s", 2) if "recovery_s" in f else ""
                  for p in POLICIES]
        lines.append("| " + " | ".join(cells) + " |")
    difference = result["figures"]["difference_without_load"]
    lines += ["", "Time per token without load, adaptive against static: "
              f"{with_spread(difference, 100, ' %', 2)} more."]
    for note in notes(result["figures"]):
        lines += ["", note]
    taken = [(phase, f["cpu_taken_percent"], f["cpu_lost_percent"])
             for phase, f in zip(experiment.phases, result["figures"]["phases"])
             if "cpu_taken_percent" in f]
    for phase, had, lost in taken:
        lines += ["", f"{phase.label()}: the other process had "
                  f"{with_spread(had['static'], 1, ' %')} (static) and "
                  f"{with_spread(had['adaptive'], 1, ' %')} (adaptive) of the CPU, the driver "
                  f"lost {with_spread(lost['static'], 1, ' %')} and "
                  f"{with_spread(lost['adaptive'], 1, ' %')}; "
                  f"priority: {result['cpu_priority'] or 'unknown'}."]
    lines += ["", "| what | value | bound | |", "| --- | ---: | --- | --- |"]
    lines += [f"| {c['what']} | {value_text(c)} | {c['bound']} | {'ok' if c['ok'] else 'missed'} |"
              for c in result["checks"]]
    if result["late"]:
        lines += ["", "Left out, because the emulation was late: " + ", ".join(result["late"]) +
                  "."]
    lines += ["", f"Phases: `{result['phases']}`, period of the CPU's load "
              f"{result['period_ms']} ms. ± is half the distance of the extremes over the "
              "repeats, or of the quartiles of four and more."]
    return "\n".join(lines) + "\n"


def path_of(values, x_of, y_of):
    """A line through all that have a value."""
    points = [f"{x_of(i):.1f},{y_of(v):.1f}" for i, v in enumerate(values) if v is not None]
    return "M" + " L".join(points) if points else ""


def nice_step(most):
    """So that at most six lines are drawn."""
    step = 10.0 ** -3
    while most / step > 6:
        step *= 2 if str(step).lstrip("0.").startswith(("1", "5")) else 2.5
    return step


def chart(pairs, result, experiment):
    """Two lines over time, phases shaded."""
    width, height, left, top = 760, 260, 56, 64
    bins = 240
    lines = {p: series(pairs, p, experiment, bins) for p in POLICIES}
    most = 1.08 * max((v for values in lines.values() for v in values if v is not None),
                      default=1.0)
    starts = experiment.starts()

    def x_at(at):
        return left + width * at / starts[-1]

    def y_of(value):
        return top + height * (1 - value / most)
    label = " (emulated accelerator)" if result["emulated"] else ""
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 20}" '
           f'height="{top + height + 48}" font-family="sans-serif" font-size="11">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="18" font-size="13">{experiment.title}, {result["model"]}: '
           f'time per token{label}</text>']
    for phase, start, end in zip(experiment.phases, starts, starts[1:]):
        out.append(f'<rect x="{x_at(start):.1f}" y="{top}" width="{x_at(end) - x_at(start):.1f}" '
                   f'height="{height}" fill="{SHADES[phase.kind]}"/>'
                   f'<text x="{(x_at(start) + x_at(end)) / 2:.1f}" y="{top - 6}" '
                   f'text-anchor="middle">{phase.label()}</text>')
    step = nice_step(most)
    for k in range(int(most / step) + 1):
        out.append(f'<line x1="{left}" x2="{left + width}" y1="{y_of(k * step):.1f}" '
                   f'y2="{y_of(k * step):.1f}" stroke="#dddddd"/>'
                   f'<text x="{left - 6}" y="{y_of(k * step) + 4:.1f}" text-anchor="end">'
                   f'{k * step:g}</text>')
    for start in starts:
        out.append(f'<text x="{x_at(start):.1f}" y="{top + height + 16}" text-anchor="middle">'
                   f'{start:g}</text>')
    unit = "tokens" if experiment.phases[0].unit == "t" else "seconds"
    out.append(f'<text x="{left + width / 2:.1f}" y="{top + height + 36}" text-anchor="middle">'
               f'{unit}</text><text x="{left - 40}" y="{top - 6}">ms</text>')
    for i, policy in enumerate(POLICIES):
        path = path_of(lines[policy], lambda b: left + width * (b + 0.5) / bins, y_of)
        out.append(f'<path d="{path}" fill="none" stroke="{COLOURS[policy]}" '
                   'stroke-width="1.5"/>'
                   f'<line x1="{left + i * 120}" x2="{left + i * 120 + 18}" y1="36" y2="36" '
                   f'stroke="{COLOURS[policy]}" stroke-width="2"/>'
                   f'<text x="{left + i * 120 + 24}" y="40">{policy}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"
