"""What this host takes for a prompt before and behind the device: the simulator's figures for it,
fitted to the cells of llama.cpp by layers.

That time is the wall's less that in which the device was in use. For a prompt of one pass it is

  graph_us + embedding_ns * tokens * n_embd + mask_ns * tokens * rows of the masks

(docs/simulator.md). Hosts differ in the last two by several times, so each benchmark has its own.
"""

import json
import re

GRAPH_US = 200  # the simulator's default
SYSTEM = "layers"


def masks(facts):
    """Layers with a window have a mask of their own. With linear layers, and without, there is one
    for the others."""
    return 2 if facts.get("sliding_window") else 1


def samples(cells, machines):
    """[(values of embeddings, values of masks, nanoseconds)] of prompts of one pass. `machines` are
    by model."""
    found = []
    for cell in cells:
        host_us = cell["systems"].get(SYSTEM, {}).get("host_us")
        prefill = re.fullmatch(r"pp(\d+)", cell["phase"])
        tokens = int(prefill.group(1)) if prefill else 0
        if host_us is None or not 0 < tokens <= machines[cell["model"]].ubatch:
            continue
        with open(f"models/{cell['model']}.json", encoding="utf-8") as f:
            facts = json.load(f)
        found.append((tokens * facts["embedding"], tokens * tokens * masks(facts),
                      1e3 * max(1.0, host_us - GRAPH_US)))
    return found


def fit(found):
    """(embedding_ns, mask_ns) with the least squares of relative errors, neither below 0; None
    without enough samples."""
    scaled = [(e / ns, m / ns) for e, m, ns in found]
    ee, em, mm = (sum(a * b for a, b in pairs) for pairs in (
        [(e, e) for e, _ in scaled], scaled, [(m, m) for _, m in scaled]))
    e1, m1 = sum(e for e, _ in scaled), sum(m for _, m in scaled)
    determinant = ee * mm - em * em
    if len(found) < 2 or determinant <= 0:
        return None
    embedding, mask = (e1 * mm - m1 * em) / determinant, (m1 * ee - e1 * em) / determinant
    if embedding < 0:
        return 0.0, m1 / mm
    if mask < 0:
        return e1 / ee, 0.0
    return embedding, mask
