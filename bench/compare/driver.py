"""Runs bench/drive, one process per measurement, and keeps what it printed."""

import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import time

TIMEOUT_S = 900
# an emulation that was late by more than this did not measure what it says (docs/rigs.md)
MOST_LAG = 0.05
ATTEMPTS = 3
# a run is made once more if in one of its phases the core was disturbed for a larger share
MOST_DISTURBED = 0.5
CPU_SPEED_SECONDS = "1"
MOST_CORES = 4
# how long one run may wait for an undisturbed core
PATIENCE_SECONDS = "90"
MEASURE_ATTEMPTS = 16
LEAST_MEASUREMENTS = 6
SAME_SPEED = 0.95
# what llama.cpp prints if memory is lacking; a file that is broken reads otherwise
NO_MEMORY = re.compile(r"(unable|failed) to allocate|out of memory")


class Failed(Exception):
    """The driver ended with an error."""


class DoesNotFit(Failed):
    """The model or its context found no memory."""


class Driver:
    def __init__(self, program, libraries, backend, cache):
        self.program = program
        self.libraries = libraries
        self.backend = backend
        self.cache = cache
        self.build = digest([program, backend] + glob.glob(os.path.join(libraries, "*.so*")))
        os.makedirs(cache, exist_ok=True)
        self.begun = bool(os.listdir(cache))  # some runs are there already
        self.cpu_speed = self._measure_core()

    def command(self, machine, arguments):
        return [self.program, "-m", machine.path, "--libraries",
                self.libraries] + machine.arguments() + arguments

    def _key(self, machine, arguments, environment, round_number):
        stat = os.stat(machine.path)
        what = [self.build, stat.st_size, stat.st_mtime_ns, machine.arguments(), arguments,
                sorted(environment.items()), machine.identity, round_number]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:24]

    def fits(self, machine, arguments):
        """Whether the model loads that way; an error that is not about memory is raised."""
        try:
            self._start(machine, arguments + ["--check"], machine.environment(self.backend))
            return True
        except DoesNotFit:
            return False

    def _measure_core(self):
        """The speed of an undisturbed core: the best moment of any."""
        program = os.path.join(os.path.dirname(self.program), "cpu-speed")
        return max(float(subprocess.run([program, CPU_SPEED_SECONDS], capture_output=True,
                                        text=True, timeout=TIMEOUT_S, check=True,
                                        preexec_fn=bound_to([core])).stdout)
                   for core in sorted(os.sched_getaffinity(0))[:MOST_CORES])

    def measure_host(self, ats, rig):
        """Has `ats` measure this host's CPU, by which rigs are scaled, until two times it was as
        fast as ever: what disturbs a core makes it slower. With one computing thread, on each
        core in turn."""
        environment = dict(os.environ, ATS_RIG_MEASURE="1")
        cores = usable_cores()
        places = [[c] for c in sorted(os.sched_getaffinity(0))] if len(cores) == 1 else [cores]
        speeds = []  # by type of weights
        for attempt in range(MEASURE_ATTEMPTS):
            done = subprocess.run([ats, "rig", "--json", rig], env=environment,
                                  capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
                                  preexec_fn=bound_to(places[attempt % len(places)]))
            if done.returncode != 0:
                raise Failed(done.stderr.strip())
            host = json.loads(done.stdout)["scale"]["host"]
            speeds.append([v for k, v in sorted(host.items()) if k.startswith("matvec_")])
            if attempt + 1 >= LEAST_MEASUREMENTS and twice_as_fast_as_ever(speeds):
                break
        else:
            say("this machine's cores are disturbed all the time; the rigs' scale is uncertain")
        self.cpu_speed = max(self.cpu_speed, self._measure_core())

    def run(self, machine, arguments, extra_environment=None, round_number=0, only=None):
        """The driver's result; from the cache if this very run was made before. One that is late
        in all attempts is returned with a "lag" above MOST_LAG and not kept. With `only`, a
        phase, nothing but that counts."""
        environment = machine.environment(self.backend)
        environment.update(extra_environment or {})
        path = os.path.join(self.cache, self._key(machine, arguments, environment, round_number))
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                return json.load(f)
        result = self._in_time(machine, arguments, environment, only)
        if result["lag"] <= MOST_LAG and disturbed(result) > MOST_DISTURBED:
            say(f"the core was disturbed for {100 * disturbed(result):.0f} % of a phase; once more")
            again = self._in_time(machine, arguments, environment, only)
            if again["lag"] <= MOST_LAG and disturbed(again) < disturbed(result):
                result = again
        if result["lag"] <= MOST_LAG:
            temporary = path + ".part"
            with open(temporary, "w", encoding="utf-8") as f:
                json.dump(result, f)
            os.replace(temporary, path)
        return result

    def _in_time(self, machine, arguments, environment, only=None):
        """A run whose emulation kept its clock, or the last of the attempts."""
        for attempt in range(ATTEMPTS):
            if attempt > 0:
                time.sleep(2)
            result = self._start(machine, arguments, environment)
            if only is not None:
                result["tests"] = [t for t in result["tests"] if t["phase"] == only]
            result["lag"] = lag(result)
            if result["lag"] <= MOST_LAG:
                break
            say(f"the emulation was {100 * result['lag']:.0f} % late: this machine is busy; "
                f"attempt {attempt + 1} of {ATTEMPTS} does not count")
        return result

    def _start(self, machine, arguments, environment):
        command = self.command(machine, arguments) + ["--cpu-speed", f"{self.cpu_speed:.3f}",
                                                      "--patience", PATIENCE_SECONDS]
        try:
            done = subprocess.run(command, env=dict(plain_environment(), **environment),
                                  capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
                                  preexec_fn=bound_to(usable_cores())
                                  if machine.emulated else None)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{' '.join(command)}\ntook more than {TIMEOUT_S} s") from late
        if done.returncode != 0:
            kind = DoesNotFit if done.returncode == 1 and NO_MEMORY.search(done.stderr) else Failed
            raise kind(f"{' '.join(command)}\nended with {done.returncode}: "
                       f"{done.stderr[-1500:]}")
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError as wrong:
            raise Failed(f"{' '.join(command)}\nprinted no JSON: {wrong}") from wrong


def twice_as_fast_as_ever(speeds):
    """Whether the last measurement, and one before it, have all figures near their largest."""
    largest = [max(column) for column in zip(*speeds)]
    near = [all(v >= SAME_SPEED * m for v, m in zip(row, largest)) for row in speeds]
    return near[-1] and sum(near) > 1


def disturbed(result):
    """The largest share of a phase in which the core was not the run's own."""
    return max((t["disturbed"] for t in result["tests"]), default=0)


def say(text):
    print(f"  {text}", file=sys.stderr, flush=True)


def reason(text):
    """The line of a program's messages that says what went wrong."""
    lines = [line for line in text.strip().splitlines() if "emulated clock" not in line]
    wrong = [line for line in lines if re.search(r"cannot|unable|failed|error", line)]
    return (wrong or lines or ["no message"])[0]


def digest(paths):
    """Of the files' content; a file with several names counts once."""
    total = hashlib.sha256()
    for path in sorted({os.path.realpath(p) for p in paths}):
        with open(path, "rb") as f:
            total.update(hashlib.file_digest(f, "sha256").digest())
    return total.hexdigest()[:16]


def plain_environment():
    """This process's, without what would steer ATS or ggml beside a machine's own settings."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("ATS_", "GGML_"))}


def emulated(test):
    """The counters of the emulated device, or an empty dictionary on a real one."""
    return next((c for name, c in test["counters"].items() if name.startswith("EMU")), {})


def usable_cores():
    """Without the last one, which is the emulation's (docs/rigs.md), if there are others."""
    cores = sorted(os.sched_getaffinity(0))
    last = (os.cpu_count() or 1) - 1
    return [c for c in cores if c != last] or cores


def bound_to(cores):
    return lambda: os.sched_setaffinity(0, cores)


def lag(result):
    """How late the emulation was in what counts, as a share of the time it was in use."""
    late = sum(t["late_us"] for t in result["tests"])
    used = sum(t["used_us"] for t in result["tests"])
    return late / used if used else 0
