#!/usr/bin/env python3
"""What holds of any plan of `ats plan --json`.

  plan_sound.py FILE...                  of reports that are there
  plan_sound.py --models ATS ROOT WORK   of the eight models, at several budgets

Prints what does not hold, a line each."""
import json
import re
import subprocess
import sys

MODELS = {
    "glm-z1-9b": "laptop-3060",
    "qwen3-14b": "laptop-3060",
    "qwen3-30b-a3b": "laptop-3060",
    "gpt-oss-20b": "laptop-3060",
    "llama-3.1-70b": "desktop-4090",
    "qwen3-next-80b-a3b": "desktop-4090",
    "qwen3.5-122b-a10b": "desktop-4090",
    "gpt-oss-120b": "desktop-4090",
}
TEXTS = ("Why:", "physical bound", "this plan", "staging memory", "left alone", "CPU only")


def faults(report):
    """It fits; the solver is within 1 % of its bound of what can be saved; no candidate is predicted
    to be faster (0.1 % counts as equal); more splits than by layers only if that is faster; no phase
    is faster than the physical bound."""
    for device in report["devices"]:
        candidates = {c["name"]: c for c in device["candidates"]}
        chosen = [c for c in device["candidates"] if c["chosen"]]
        if len(chosen) != 1:
            yield "not one chosen candidate"
            continue
        own = chosen[0]["predicted"]
        if chosen[0]["used_bytes"] > device["memory"]["budget_bytes"]:
            yield "more than the budget"
        s = device["solver"]
        saved = s["host_us"] - s["bound_us"]
        if s["weighted_us"] - s["bound_us"] > 0.01 * saved + 1e-6 * s["host_us"]:
            yield "the solver is %.3f %% from its bound" % (
                100 * (s["weighted_us"] - s["bound_us"]) / saved)
        for name, c in candidates.items():
            if c["by_slice"]:  # no placement of tensors
                continue
            if own["session_us"] > 1.001 * c["predicted"]["session_us"]:
                yield "%s is predicted to be faster" % name
        layers = candidates.get("layers", {}).get("predicted")
        if (layers and own["decode"]["splits"] > layers["decode"]["splits"]
                and own["session_us"] >= layers["session_us"]):
            yield "more splits than by layers, and no faster"
    for phase in ("decode", "prefill"):
        if report["predicted"][phase]["us"] < report["bound"][phase + "_us"]:
            yield "%s is faster than the physical bound" % phase


def run(ats, *words):
    result = subprocess.run([ats, *words], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print(" ".join(words), "failed:", result.stderr.strip())
    return result.stdout


def check_model(ats, root, work, model, rig):
    """Nothing resident, then a quarter, a half and three quarters of the model: more VRAM never
    predicts slower. The rig gets the memory that this needs beside compute and staging memory."""
    path = f"{work}/{model}.gguf"
    large = f"{work}/{rig}-80G.json"
    run(ats, "synth", "--model", model, "--meta-only", "--out", path)
    text = open(f"{root}/rigs/{rig}.json", encoding="utf-8").read()
    with open(large, "w", encoding="utf-8") as out:
        out.write(re.sub(r'"memory": "\d+G"', '"memory": "80G"', text))
    total = 0
    before = float("inf")
    for quarter in range(4):
        vram = total * quarter // 4 + (2 << 30 if quarter else 0)
        r = json.loads(run(ats, "plan", path, "--rig", large, "--vram", str(vram), "--json"))
        for fault in faults(r):
            print(model, "with", vram, "bytes:", fault)
        memory = r["devices"][0]["memory"]
        if quarter == 0:
            total = memory["host_weight_bytes"] + memory["host_state_bytes"]
            if memory["weight_bytes"] != 0:
                print(model, "has weights in VRAM without VRAM")
            if [a["name"] for a in r["alternatives"]] != ["llama.cpp, CPU only"]:
                print(model, "has alternatives that need VRAM, without VRAM")
        now = r["predicted"]["session_us"]
        if now > before * (1 + 1e-6):
            print(model, "with", vram, "bytes is slower than with fewer:", now, before)
        before = now
    text = run(ats, "plan", path, "--rig", rig)
    if max(map(len, text.splitlines())) > 80:
        print(model, "takes more than 80 columns")
    for wanted in TEXTS:
        if wanted not in text:
            print(model, "lacks", wanted)


def main():
    if sys.argv[1] == "--models":
        for model, rig in MODELS.items():
            check_model(*sys.argv[2:5], model, rig)
        return
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            for fault in faults(json.load(file)):
                print(fault)


main()
