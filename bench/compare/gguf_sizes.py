"""Sizes of a GGUF's tensors by layer, read from its header alone.

The header is described in ggml's docs/gguf.md. A tensor's size is the distance to the next
one's data, padding included, so no table of quantisation types is needed.
"""

import os
import re
import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
           12: "d"}
STRING, ARRAY = 8, 9


class Reader:
    def __init__(self, stream):
        self.stream = stream

    def scalar(self, code):
        return struct.unpack("<" + code, self.stream.read(struct.calcsize("<" + code)))[0]

    def text(self):
        return self.stream.read(self.scalar("Q")).decode("utf-8", "replace")

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            of, n = self.scalar("I"), self.scalar("Q")
            if of not in (STRING, ARRAY):
                self.stream.seek(n * struct.calcsize("<" + SCALARS[of]), os.SEEK_CUR)
                return None
            for _ in range(n):
                self.value(of)
            return None
        return self.scalar(SCALARS[kind])


def read(path):
    """(metadata, {tensor name: bytes}); arrays in the metadata are None."""
    with open(path, "rb") as stream:
        r = Reader(stream)
        if stream.read(4) != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file")
        r.scalar("I")
        n_tensors, n_keys = r.scalar("Q"), r.scalar("Q")
        metadata = {}
        for _ in range(n_keys):
            key = r.text()
            metadata[key] = r.value(r.scalar("I"))
        places = []
        for _ in range(n_tensors):
            name = r.text()
            for _ in range(r.scalar("I")):
                r.scalar("Q")
            r.scalar("I")
            places.append((r.scalar("Q"), name))
        alignment = metadata.get("general.alignment", 32)
        data = -(-stream.tell() // alignment) * alignment
    end = os.path.getsize(path) - data
    places.sort()
    ends = [offset for offset, _ in places[1:]] + [end]
    return metadata, {name: after - offset for (offset, name), after in zip(places, ends)}


def by_layer(path):
    """(bytes of each layer, bytes of the output layer, metadata). The token embedding, which
    llama.cpp keeps in host memory, counts for nothing unless it is the output matrix too."""
    metadata, sizes = read(path)
    layers = {}
    output = sum(n for name, n in sizes.items() if name.startswith("output"))
    if "output.weight" not in sizes:
        output += sizes.get("token_embd.weight", 0)
    for name, n in sizes.items():
        layer = re.match(r"blk\.(\d+)\.", name)
        if layer:
            layers[int(layer.group(1))] = layers.get(int(layer.group(1)), 0) + n
    return [layers[i] for i in sorted(layers)], output, metadata
