"""The emulated machine of a model: which rig, and how much VRAM a file with fewer layers gets.

A file with L' of a model's L layers stands for the whole one if the same share of its layers
fits. On the real machine k = (V - fixed) / (layer + KV cache) layers fit, a fraction included;
so the file gets room for its fixed parts and for k' + r L'/L layers, where k' = round(k L'/L)
with k rounded down and r is k's fraction. `fixed` is what does not scale with depth: the output
layer and compute memory.
"""

import hashlib
import json
import os
import subprocess

import driver
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
# the weights that set a rig's factor, by the "types" of models/*.json (docs/rigs.md)
RIG_TYPES = {"F16": "f16", "MXFP4": "mxfp4"}
RIG_TIMEOUT_S = 120
# what a user may have set for rigs, and for a real device's own library
RIG_VARIABLES = ("ATS_RIGS", "ATS_RIG_SCALE")
DEVICE_PREFIXES = ("GGML_CUDA_", "GGML_VK_")
# cells of a KV cache come in multiples of it (llama.cpp, src/llama-kv-cache-iswa.cpp)
KV_PAD = 256


def kv_bytes(metadata, cells):
    """F16 keys and values of one attention layer."""
    arch = metadata["general.architecture"]
    heads = metadata.get(f"{arch}.attention.head_count_kv") or 1
    key = metadata.get(f"{arch}.attention.key_length") or (
        metadata[f"{arch}.embedding_length"] // metadata[f"{arch}.attention.head_count"])
    value = metadata.get(f"{arch}.attention.value_length") or key
    return 2 * heads * (key + value) * cells


def recurrent_bytes(metadata):
    """F32 state of one linear layer, for one sequence: the last columns of the convolution, and
    a matrix (llama.cpp, src/llama-hparams.cpp, n_embd_r and n_embd_s)."""
    arch = metadata["general.architecture"]
    kernel, inner, groups, state = (metadata[f"{arch}.ssm.{key}"] for key in
                                    ("conv_kernel", "inner_size", "group_count", "state_size"))
    return 4 * ((kernel - 1) * (inner + 2 * groups * state) + state * inner)


def state_bytes_per_layer(metadata, context, ubatch):
    """What a layer keeps of the context, on average over the layers: of every `interval` layers
    one attends to all of it and the others are linear; or every second one sees a window."""
    arch = metadata["general.architecture"]
    full = kv_bytes(metadata, context)
    interval = metadata.get(f"{arch}.full_attention_interval")
    if interval:
        return (full + (interval - 1) * recurrent_bytes(metadata)) / interval
    window = metadata.get(f"{arch}.attention.sliding_window")
    if arch == "gpt-oss" and window:
        cells = min(context, -(-(window + ubatch) // KV_PAD) * KV_PAD)
        return (full + kv_bytes(metadata, cells)) / 2
    return full


def rig_table(ats, rig, environment):
    """What `ats rig` says: figures, memory, and the factor, which the first such call measures
    and keeps."""
    try:
        done = subprocess.run([ats, "rig", "--json", rig], env=environment, capture_output=True,
                              text=True, timeout=RIG_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise driver.Failed(f"ats rig {rig}: {failure}") from failure
    if done.returncode != 0:
        raise driver.Failed(done.stderr.strip() or f"ats rig {rig} ended with {done.returncode}")
    return json.loads(done.stdout)


def rig_files(rig, build):
    """The rig's file and those that it is based on; where `ats` looks for them, too."""
    folders = [os.environ.get("ATS_RIGS", ""), os.path.join(build, "share", "ats", "rigs"),
               os.path.join(build, "rigs"), "rigs"]
    by_name = [os.path.join(folder, rig + ".json") for folder in folders if folder]
    path = rig if "/" in rig or rig.endswith(".json") else next(
        (p for p in by_name if os.path.exists(p)), "")
    files = []
    while path and path not in files and os.path.exists(path):
        files.append(path)
        with open(path, encoding="utf-8") as f:
            base = json.load(f).get("base")
        path = os.path.join(os.path.dirname(path), base + ".json") if base else ""
    return files


class Machine:
    """Everything about where a model's cells run."""

    def __init__(self, model, path, description, context, device, build, rig=None, vram=None):
        self.model = model
        self.path = path
        self.device = device
        self.emulated = device.startswith("EMU")
        self.rig = rig or RIG_OF[model]
        platform = PLATFORMS.get(self.rig.rsplit("-pcie", 1)[0], {"vram": None, "ubatch": 512})
        self.ubatch = platform["ubatch"]
        self.threads = len(driver.usable_cores()) if self.emulated else \
            len(os.sched_getaffinity(0))
        self.context = context
        with open(description, encoding="utf-8") as f:
            facts = json.load(f)
        self.full_layers = facts["layers"]
        self.rig_type = RIG_TYPES.get(facts["types"], "q4")
        self.whole_vram = platform["vram"]
        self.identity = None  # of the machine, in keys of runs
        self.profile = None
        if self.emulated:
            self._read_rig(build)
        if not self.whole_vram and not vram:
            raise driver.Failed(f"{self.rig} on {device}: give --vram")
        self._size(path, context, vram)

    def _read_rig(self, build):
        table = rig_table(os.path.join(build, "bin", "ats"), self.rig,
                          dict(driver.plain_environment(), **self._rig_environment(),
                               ATS_LLAMA_BIN=os.environ.get("ATS_LLAMA_BIN", "")))
        self.whole_vram = table["memory_bytes"]
        table["scale"].get("host", {}).pop("measured_before", None)
        self.identity = [table, driver.digest(rig_files(self.rig, build))]
        self.profile = self._measure_profile(build)

    def _measure_profile(self, build):
        """ATS plans by a profile of the emulated machine, one for all its runs."""
        text = json.dumps([self.identity, self.rig_type, self.threads], sort_keys=True)
        name = "profile-" + hashlib.sha256(text.encode()).hexdigest()[:16]
        path = os.path.abspath(os.path.join(build, "bench", "profiles", name + ".json"))
        ats = os.path.join(build, "bin", "ats")
        environment = dict(driver.plain_environment(), **self._rig_environment(),
                           ATS_EMULATE=self.rig, OMP_WAIT_POLICY="passive",
                           ATS_LLAMA_BIN=os.environ.get("ATS_LLAMA_BIN", ""))
        kept = [ats, "profile", "--show", "--from", path]  # not one of an older format
        if os.path.exists(path) and subprocess.run(
                kept, env=environment, capture_output=True, timeout=RIG_TIMEOUT_S,
                check=False).returncode == 0:
            return path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        command = [ats, "profile", "--quick", "--device", "EMU0",
                   "--threads", str(self.threads), "--out", path]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True,
                                  timeout=RIG_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as failure:
            raise driver.Failed(f"ats profile: {failure}") from failure
        if done.returncode != 0:
            raise driver.Failed(done.stderr.strip() or "ats profile failed")
        return path

    def _size(self, path, context, vram):
        """Layers and memory of the file that stands for the model."""
        layers, output, metadata = gguf_sizes.by_layer(path)
        arch = metadata["general.architecture"]
        self.layers = len(layers)
        self.experts = metadata.get(f"{arch}.expert_count", 0)
        vocabulary = metadata.get(f"{arch}.vocab_size") or 1 << 17
        layer = sum(layers) / len(layers) + state_bytes_per_layer(metadata, context, self.ubatch)
        fixed = output + WORK_BYTES + 4 * vocabulary * self.ubatch
        whole_vram = self.whole_vram or vram
        fit = min(max((whole_vram - fixed) / layer, 0), self.full_layers)
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

    def _rig_environment(self):
        given = {k: os.environ[k] for k in RIG_VARIABLES if k in os.environ}
        return dict(given, ATS_RIG_TYPE=self.rig_type)

    def environment(self, library):
        """Of a run. A real device gets no ATS_VRAM: the driver holds memory until only the cap is
        free, and sets it from what is free then."""
        environment = {"GGML_BACKEND_PATH": os.path.abspath(library)}
        if self.emulated:
            return dict(environment, **self._rig_environment(), ATS_EMULATE=self.rig,
                        ATS_EMU_MEMORY=str(self.vram), OMP_WAIT_POLICY="passive")
        environment["GGML_CUDA_REGISTER_HOST"] = "1"  # weights of host memory are page-locked
        environment.update({k: v for k, v in os.environ.items() if k.startswith(DEVICE_PREFIXES)})
        return dict(environment, ATS_ACCEL=self.device)

    def budget(self):
        """ATS's own variables, beside the level's."""
        return {"ATS_VRAM": str(self.vram), "ATS_PROFILE": self.profile} if self.emulated else {}

    def describe(self):
        place = f"rig {self.rig}" if self.emulated else f"device {self.device}"
        return f"{place}, {self.vram >> 20} MiB of VRAM"
