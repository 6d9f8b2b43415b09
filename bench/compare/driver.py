"""Runs bench/drive, one process per measurement, and keeps what it printed."""

import hashlib
import json
import os
import subprocess
import sys
import time

TIMEOUT_S = 900
# an emulation that was late by more than this did not measure what it says (docs/rigs.md)
MOST_LAG = 0.05
ATTEMPTS = 3


class Failed(Exception):
    """The driver ended with an error."""


class Driver:
    def __init__(self, program, libraries, backend, cache):
        self.program = program
        self.libraries = libraries
        self.backend = backend
        self.cache = cache
        with open(backend, "rb") as f:
            self.build = hashlib.sha256(f.read()).hexdigest()[:16]
        os.makedirs(cache, exist_ok=True)

    def command(self, machine, arguments):
        return [self.program, "-m", machine.path, "--libraries",
                self.libraries] + machine.arguments() + arguments

    def _key(self, machine, arguments, environment, round_number):
        stat = os.stat(machine.path)
        what = [self.build, stat.st_size, stat.st_mtime_ns, machine.arguments(), arguments,
                sorted(environment.items()), host_speed(), round_number]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:24]

    def fits(self, machine, arguments):
        """Whether the model loads that way."""
        try:
            self._start(machine, arguments + ["--check"], machine.environment(self.backend))
            return True
        except Failed:
            return False

    def run(self, machine, arguments, extra_environment=None, round_number=0):
        """The driver's result; from the cache if this very run was made before."""
        environment = machine.environment(self.backend)
        environment.update(extra_environment or {})
        path = os.path.join(self.cache, self._key(machine, arguments, environment, round_number))
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                return json.load(f)
        for attempt in range(ATTEMPTS):
            result = self._start(machine, arguments, environment)
            result["lag"] = lag(result)
            if result["lag"] <= MOST_LAG:
                break
            print(f"\n  the emulation was {100 * result['lag']:.0f} % late: this machine is busy; "
                  f"attempt {attempt + 1} of {ATTEMPTS} does not count", file=sys.stderr)
            time.sleep(2)
        temporary = path + ".part"
        with open(temporary, "w", encoding="utf-8") as f:
            json.dump(result, f)
        os.replace(temporary, path)
        return result

    def _start(self, machine, arguments, environment):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("ATS_", "GGML_"))}
        env.update(environment)
        command = self.command(machine, arguments)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S,
                              check=False,
                              preexec_fn=keep_off_emulation if machine.emulated else None)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}\n{done.stderr[-1500:]}")
        return json.loads(done.stdout)


def emulated(test):
    """The counters of the emulated device, or an empty dictionary on a real one."""
    return next((c for name, c in test["counters"].items() if name.startswith("EMU")), {})


def host_speed():
    """What this host's CPU was measured to do: rigs are scaled by it, so runs made with another
    figure cannot be mixed."""
    folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "ats")
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if "speed" in name:
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                found.append(f.read())
    return hashlib.sha256("".join(found).encode()).hexdigest()[:16]


def keep_off_emulation():
    """The last core is the emulation's (docs/rigs.md); its thread takes it by itself."""
    cores = os.cpu_count() or 1
    if cores > 1:
        os.sched_setaffinity(0, range(cores - 1))


def lag(result):
    """How late the emulation was over all phases, as a share of the time it was in use."""
    late = sum(emulated(t).get("lag_us", 0) for t in result["tests"])
    used = sum(emulated(t).get("in_use_us", 0) for t in result["tests"])
    return late / used if used else 0
