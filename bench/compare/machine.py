"""The emulated machine of a model: which rig, and how much VRAM a file with fewer layers gets.

A file with L' of a model's L layers stands for the whole one if the same share of its layers
fits. On the real machine k = (V - fixed) / (layer + KV cache) layers fit, a fraction included;
so the file gets room for its fixed parts and for k' + r L'/L layers, where k' = round(k L'/L)
with k rounded down and r is k's fraction. `fixed` is what does not scale with depth: the output
layer and compute memory.
"""

import json
import os

import gguf_sizes

# the published evaluation's machines (docs/rigs.md) and passes
PLATFORMS = {
    "laptop-3060": {"vram": 6 << 30, "ubatch": 512},
    "desktop-4090": {"vram": 24 << 30, "ubatch": 2048},
}
RIG_OF = {
    "glm-z1-9b": "laptop-3060",
    "qwen3-14b": "laptop-3060",
    "qwen3-30b-a3b": "laptop-3060",
    "gpt-oss-20b": "laptop-3060",
    "llama-3.1-70b": "desktop-4090",
    "qwen3-next-80b-a3b": "desktop-4090",
    "qwen3.5-122b-a10b": "desktop-4090",
    "gpt-oss-120b": "desktop-4090",
}
MODELS = list(RIG_OF)
QUICK_MODELS = ["qwen3-14b", "qwen3-30b-a3b"]
# activations and attention's work space, beside the logits of one pass
WORK_BYTES = 192 << 20


def kv_bytes_per_layer(metadata, context):
    """F16 keys and values of one attention layer."""
    arch = metadata["general.architecture"]
    heads = metadata.get(f"{arch}.attention.head_count_kv") or 1
    key = metadata.get(f"{arch}.attention.key_length") or (
        metadata[f"{arch}.embedding_length"] // metadata[f"{arch}.attention.head_count"])
    value = metadata.get(f"{arch}.attention.value_length") or key
    return 2 * heads * (key + value) * context


class Machine:
    """Everything about where a model's cells run."""

    def __init__(self, model, path, description, context, device, rig=None, vram=None):
        self.model = model
        self.path = path
        self.device = device
        self.emulated = device.startswith("EMU")
        self.rig = rig or RIG_OF[model]
        platform = PLATFORMS.get(self.rig.rsplit("-pcie", 1)[0], {"vram": None, "ubatch": 512})
        self.ubatch = platform["ubatch"]
        self.whole_vram = platform["vram"]
        # one core is the emulation's
        self.threads = max(1, (os.cpu_count() or 2) - self.emulated)
        self.context = context
        with open(description, encoding="utf-8") as f:
            self.full_layers = json.load(f)["layers"]
        layers, output, metadata = gguf_sizes.by_layer(path)
        arch = metadata["general.architecture"]
        self.layers = len(layers)
        self.experts = metadata.get(f"{arch}.expert_count", 0)
        vocabulary = metadata.get(f"{arch}.vocab_size") or 1 << 17
        kv = kv_bytes_per_layer(metadata, context)
        layer = sum(layers) / len(layers) + kv
        fixed = output + WORK_BYTES + 4 * vocabulary * self.ubatch
        fit = min(max((platform["vram"] - fixed) / layer, 0), self.full_layers)
        whole, rest = int(fit), fit - int(fit)
        share = self.layers / self.full_layers
        self.layers_fit = round(whole * share)
        self.vram = vram or int(fixed + (self.layers_fit + rest * share) * layer) >> 20 << 20

    def arguments(self):
        """The driver's arguments that make the machine what it is."""
        arguments = ["-c", str(self.context), "--ubatch", str(self.ubatch), "-t", str(self.threads)]
        if not self.emulated:
            arguments += ["--cap", f"{self.device}={self.vram}"]
        return arguments

    def environment(self, library):
        if not self.emulated:
            return {"GGML_BACKEND_PATH": os.path.abspath(library), "ATS_ACCEL": self.device}
        return {
            "GGML_BACKEND_PATH": os.path.abspath(library),
            "ATS_EMULATE": self.rig,
            "ATS_EMU_MEMORY": str(self.vram),
            "OMP_WAIT_POLICY": "passive",
        }
