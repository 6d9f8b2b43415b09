#!/usr/bin/env python3
"""ops_sample.py SEED FOLDER OPERATORS <LIST: spreads the cases of test-backend-ops, in random
order, over the files FOLDER/0000, FOLDER/0001, ...: rounds, each a list as its option -o takes
it. OPERATORS is a regular expression for the names of those to take.

LIST is what test-backend-ops prints when no backend supports anything (preload.c): its cases,
fused ones too. Each round has cases of every operator, as many as the fourth root of how many
there are: FLASH_ATTN_EXT with its 5000 gives 8, a unary operator with 8 gives 2. Operators whose
cases are used up are missing in later rounds. Cases that take seconds are left to
`make peer-ops-full`."""
import random
import re
import sys

CASE = re.compile(r"^ +([A-Z0-9_]+)(\(.*\)): not supported")
SLOW = re.compile(r"n_mats=(512|1024)|n_mats=32,.*k=2880|262144|65536,1\],nr=\[256|be1=700|m=80000"
                  r"|ne_input=\[256,256,192|ne=\[2304,64,64|n=8192,k=4096")
ROUND_BYTES = 100_000  # Linux takes 128 KiB per argument


def read_cases(lines, operators):
    cases = {}
    for line in lines:
        case = CASE.match(line)
        if case and operators.fullmatch(case.group(1)) and not SLOW.search(case.group(2)):
            cases.setdefault(case.group(1), set()).add(case.group(1) + case.group(2))
    return {op: sorted(names) for op, names in sorted(cases.items())}


def rounds(cases, rng):
    per_round = {op: round(len(names) ** (1 / 4)) for op, names in cases.items()}
    for names in cases.values():
        rng.shuffle(names)
    while any(cases.values()):
        chosen = []
        for op, names in cases.items():
            chosen += names[:per_round[op]]
            del names[:per_round[op]]
        yield chosen


def main():
    seed, folder = int(sys.argv[1]), sys.argv[2]
    cases = read_cases(sys.stdin, re.compile(sys.argv[3]))
    if not cases:
        sys.exit("ops_sample.py: no cases in the list")
    print(f"{sum(map(len, cases.values()))} cases of {len(cases)} operators")
    for number, chosen in enumerate(rounds(cases, random.Random(seed))):
        text = ",".join(chosen)
        if len(text) > ROUND_BYTES:
            sys.exit("ops_sample.py: a round is too long for a command line")
        with open(f"{folder}/{number:04}", "w") as file:
            file.write(text)


main()
