#!/usr/bin/env python3
"""archs_verdict.py --emu|--vulkan TABLE: judges the rows of ATS0 in test-llama-archs' table.

A row of ours must have run wherever another device of the same model ran, and must be right:
over the emulated accelerator (--emu) the error must be exactly 0. The table shows three
digits, but with an exponent: "0.00e+00" stands for errors below the smallest double only,
and no bit of a logit can differ by so little. Over a real accelerator (--vulkan) the limit is
the tool's own, and models on which the accelerator itself fails do not count. Ends with a
summary line; exit code 1 if anything failed or nothing ran."""
import re
import sys

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ROW = re.compile(r"^\|(?P<arch>[^|]+)\|(?P<device>[^|]+)\|(?P<config>[^|]+)"
                 r"\|\s*(?P<result>OK|FAIL|SKIP)\s*(\((?P<nmse>[^)]*)\))?\s*"
                 r"\|\s*(?P<roundtrip>OK|FAIL|SKIP)\s*\|$")


def read_models(path):
    """Rows by model, in the table's order."""
    models = {}
    for line in open(path, errors="replace"):
        row = ROW.match(COLOURS.sub("", line.rstrip("\n")))
        if row:
            row = {key: (value or "").strip() for key, value in row.groupdict().items()}
            models.setdefault(row["arch"] + " " + row["config"], []).append(row)
    return models


def problems_of(ours, others, exact):
    for column in ("result", "roundtrip"):
        if ours[column] == "FAIL":
            yield column + " FAIL"
        elif ours[column] == "SKIP" and any(row[column] != "SKIP" for row in others):
            yield column + " was skipped on ATS0 alone"
    if exact and ours["nmse"] and ours["nmse"] != "0.00e+00":
        yield "NMSE is not 0"


def main():
    exact = sys.argv[1] == "--emu"
    n_rows = n_failed = 0
    worst = 0.0
    for model, rows in read_models(sys.argv[2]).items():
        # by its description, "<accelerator> and CPU"; "Meta" is a split over all devices
        ours = [row for row in rows if row["device"].endswith(" and CPU")]
        others = [row for row in rows if row not in ours and row["device"] != "Meta"]
        if not exact and any(row["result"] == "FAIL" for row in others):
            print(f"archs: {model}: not counted, the accelerator itself fails")
            continue
        problems = ["no row of ATS0"] if len(ours) != 1 else list(
            problems_of(ours[0], others, exact))
        if not problems and ours[0]["result"] == "SKIP":
            continue
        n_rows += 1
        if ours and ours[0]["nmse"]:
            error = float(ours[0]["nmse"])
            worst = error if error > worst or error != error else worst
        if problems:
            n_failed += 1
            print(f"archs: {model}: {', '.join(problems)}")
    if n_rows == 0:
        print("archs: no row of ATS0 ran")
    print(f"archs: {n_rows} rows, {n_failed} failed, worst NMSE {worst:.2e}")
    return 1 if n_failed or n_rows == 0 else 0


sys.exit(main())
