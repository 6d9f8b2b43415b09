"""prometheus_text.py FIRST SECOND PID: checks two scrapes of `ats top --metrics` by the rules of
Prometheus' text format 0.0.4 and its naming advice: HELP and TYPE once and before the samples of a
metric, samples of one metric together, no series twice, valid names, labels and numbers; counters end in
_total and do not go back from the first scrape to the second."""
import re
import sys

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')


def parse_labels(text):
    """Labels between the braces, as a tuple of pairs."""
    labels, at = [], 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match, f"labels: {text}"
        labels.append(match.groups())
        at = match.end()
        if at < len(text):
            assert text[at] == ",", f"labels: {text}"
            at += 1
    names = [name for name, _ in labels]
    assert len(set(names)) == len(names), f"a label twice: {text}"
    return tuple(labels)


def parse_sample(line):
    name = NAME.match(line)
    assert name, line
    rest, labels = line[name.end():], ()
    if rest.startswith("{"):
        body, _, rest = rest[1:].rpartition("}")
        labels = parse_labels(body)
    assert re.fullmatch(r" -?[0-9]+(\.[0-9]+)?", rest), f"value: {line}"
    return name.group(), labels, float(rest)


def parse(path):
    """{(name, labels): value}, {name: type}"""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert text.endswith("\n"), "no end of line at the end"
    values, types, helped, closed, current = {}, {}, set(), set(), None
    for line in text[:-1].split("\n"):
        assert line == line.strip() and line, f"blanks: {line!r}"
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in helped and len(line.split(" ")) > 3, line
            helped.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("counter", "gauge") and name not in types and name in helped, line
            closed.add(current)
            types[name], current = kind, name
        else:
            name, labels, value = parse_sample(line)
            assert name == current and name not in closed, f"out of place: {line}"
            assert (name, labels) not in values, f"twice: {line}"
            values[name, labels] = value
    assert helped == set(types), "HELP without TYPE"
    for name, kind in types.items():
        assert NAME.fullmatch(name) and name.startswith("ats_"), name
        assert (kind == "counter") == name.endswith("_total"), f"{name} is a {kind}"
    return values, types


def main():
    first, types = parse(sys.argv[1])
    second, same = parse(sys.argv[2])
    pid = sys.argv[3]
    assert types == same, "other metrics in the second scrape"
    assert set(first) == set(second), "other series in the second scrape"
    for (name, labels), value in second.items():
        assert value >= 0, f"{name} is negative"
        if types[name] == "counter":
            assert value >= first[name, labels], f"{name} went back"
            assert dict(labels) == {"pid": pid, "device": "ATS0"}, labels
        if name.endswith("_info"):
            assert value == 1, f"{name} is {value}"
    device = (("pid", pid), ("device", "ATS0"))
    assert second["ats_processes", ()] == 1
    assert second["ats_process_info", (("pid", pid), ("program", "llama-bench"))] == 1
    assert second["ats_vram_budget_bytes", device] == 16 << 20
    for name in ("ats_graphs_total", "ats_busy_seconds_total", "ats_splits_total",
                 "ats_copied_to_accelerator_bytes_total", "ats_answer_tokens_total",
                 "ats_answer_seconds_total", "ats_cpu_seconds_total"):
        assert second[name, device] > first[name, device], f"{name} stands still"
    assert second["ats_busy_seconds_total", device] - first["ats_busy_seconds_total", device] < 60


main()
