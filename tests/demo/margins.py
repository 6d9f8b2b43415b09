#!/usr/bin/env python3
"""Which prompts have clear greedy continuations: for choosing that of test_model.sh.

    ATS_LLAMA_BIN=... tests/demo/margins.py MODEL.gguf...

Accelerators round differently from the CPU, so a text can only be the same on both where the two
best tokens are never close. Prints, per prompt, the least difference of their log probabilities
over 32 tokens, on the CPU, in the worst of the models, and the first model's text. Take one with
0.1 or more.
"""
import json
import os
import subprocess
import sys
import time
import urllib.request

PORT = 9871
TOKENS = 32
PROMPTS = [
    "It was in the morning that the captain", "She opened the door and", "In the beginning",
    "The United States of America", "And it came to pass that the king", "Mr. Darcy was",
    "We must", "The whale was", "He said to them,", "I do not know what", "My fellow Americans,",
    "Elizabeth had never been", "There was a man whose name was", "The people of the land",
    "Captain Ahab stood", "Emma could not", "Yahweh spoke to Moses, saying,",
    "The Congress of the United", "Thus says Yahweh,", "Jesus said to him,",
]


def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data,
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def wait_until_ready(server):
    for _ in range(120):
        if server.poll() is not None:
            raise SystemExit(f"llama-server ended with {server.returncode}")
        try:
            ask("/health")
            return
        except OSError:
            time.sleep(0.5)
    raise SystemExit("llama-server was not ready after a minute")


def margins(model):
    """Per prompt: the least margin and the text."""
    program = os.path.join(os.environ["ATS_LLAMA_BIN"], "llama-server")
    server = subprocess.Popen(
        [program, "-m", model, "--port", str(PORT), "--device", "none", "-np", "1", "-c", "512",
         "-t", "2", "--no-repack"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(server)
        for prompt in PROMPTS:
            answer = ask("/completion", {"prompt": prompt, "n_predict": TOKENS, "n_probs": 2,
                                         "temperature": 0})
            best = [token["top_logprobs"] for token in answer["completion_probabilities"]]
            yield min(a["logprob"] - b["logprob"] for a, b in best), answer["content"]
    finally:
        server.terminate()
        server.wait()


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    models = [list(margins(model)) for model in sys.argv[1:]]
    for i, prompt in enumerate(PROMPTS):
        print(f"{min(m[i][0] for m in models):6.3f}  {prompt!r}: {models[0][i][1]!r}")


if __name__ == "__main__":
    main()
