"""What `ats simulate` says of a cell of the benchmark (docs/simulator.md)."""

import json
import os
import re
import subprocess

import driver
import stock

# a factor that is further off is of another measurement of this host's CPU
SAME_FACTOR = 0.01


def phase_arguments(phase):
    """Arguments of the simulator for a cell's phase, "pp512" or "tg24@1024"."""
    prefill = re.fullmatch(r"pp(\d+)", phase)
    if prefill:
        return ["--prompt", prefill.group(1), "--decode", "0"]
    tokens, depth = re.fullmatch(r"tg(\d+)@(\d+)", phase).groups()
    return ["--prompt", "0", "--decode", tokens, "--depth", depth]


class Simulator:
    """`ats simulate` for the machines of a benchmark."""

    def __init__(self, build, cpu_gbps=None):
        self.program = os.path.join(build, "bin", "ats")
        self.host_time = None  # (embedding_ns, mask_ns), if not the simulator's own
        self.cpu_gbps = cpu_gbps or {}  # by model, what the CPU read of its weights
        self.foreign = False  # a cell was measured under another scale than this host's

    def _run(self, m, policy, mapped, phase, scale):
        whole = m.whole_vram or m.vram
        margin = max(1, stock.FIT_MARGIN_MIB * m.vram // whole)
        command = [self.program, "simulate", m.path, "--rig", m.rig, "--scale", scale,
                   "--vram", str(m.vram), "--ctx", str(m.context), "--ubatch", str(m.ubatch),
                   "--batch", str(m.ubatch), "--policy", policy, "--json"]
        command += phase_arguments(phase)
        command += [] if mapped else ["--no-mmap"]
        command += ["--fit-margin", f"{margin}M"] if policy == "fit" else []
        command += ["--cpu-gbps", self.cpu_gbps[m.model]] if m.model in self.cpu_gbps else []
        if self.host_time:
            command += ["--embedding-ns", f"{self.host_time[0]:.4g}",
                        "--mask-ns", f"{self.host_time[1]:.4g}"]
        environment = dict(os.environ, ATS_RIG_TYPE=m.rig_type)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise driver.Failed(f"{' '.join(command)}\n{done.stderr.strip()}")
        return json.loads(done.stdout)["results"][0]

    def tokens_per_s(self, m, policy, mapped, phase, scale):
        """This host's own rates where its scale is the one the cell was measured under, else the
        rig's at that scale, whose CPU then keeps the real machine's ratios."""
        result = self._run(m, policy, mapped, phase, "host")
        if abs(result["scale"] / scale - 1) > SAME_FACTOR:
            self.foreign = True
            result = self._run(m, policy, mapped, phase, str(scale))
        return result["phases"][0]["tokens_per_s"]

    def bound(self, m, phase, scale):
        """Tokens/s that no placement can exceed."""
        return self.tokens_per_s(m, "bound", False, phase, scale)
