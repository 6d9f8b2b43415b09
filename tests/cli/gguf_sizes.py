#!/usr/bin/env python3
"""Prints the number of tensors and the bytes of their data, from a GGUF file's metadata alone.

A reader of its own, so that what `ats` says of a file can be compared with it."""
import struct
import sys

# bytes of a block, and its elements, by number of the type (the GGUF specification)
BLOCKS = {0: (4, 1), 1: (2, 1), 8: (34, 32), 12: (144, 256), 13: (176, 256), 14: (210, 256), 39: (17, 32)}
SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


def number(file, form):
    return struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))[0]


def text(file):
    return file.read(number(file, "Q")).decode()


def skip(file, kind):
    if kind == STRING:
        text(file)
    elif kind == ARRAY:
        inner = number(file, "I")
        for _ in range(number(file, "Q")):
            skip(file, inner)
    else:
        file.read(SCALARS[kind])


def main():
    with open(sys.argv[1], "rb") as file:
        assert file.read(4) == b"GGUF" and number(file, "I") == 3
        n_tensors, n_keys = number(file, "Q"), number(file, "Q")
        for _ in range(n_keys):
            text(file)
            skip(file, number(file, "I"))
        total = 0
        for _ in range(n_tensors):
            text(file)
            elements = 1
            for _ in range(number(file, "I")):
                elements *= number(file, "Q")
            size, per_block = BLOCKS[number(file, "I")]
            number(file, "Q")
            assert elements % per_block == 0
            total += elements // per_block * size
    print(n_tensors, total)


main()
