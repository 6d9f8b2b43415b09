"""What is done in which order: phases, as the driver's --phases takes them (phases.h)."""

from dataclasses import dataclass

# the load that the published evaluation applied, in per cent
LOAD_PERCENT = 60
# how much smaller the rise in time per token is to be, by kind of load (published figures)
LEAST_SMALLER = {"cpu": 0.13, "accel": 0.38}


@dataclass(frozen=True)
class Phase:
    length: float
    unit: str = "s"  # or "t", tokens
    cpu: tuple = (0.0, 0.0)  # per cent, from and to
    accel: float = 0.0  # per cent of the accelerator and its link

    @property
    def kind(self):
        if self.cpu[0] != self.cpu[1]:
            return "ramp"
        return "cpu" if self.cpu[0] > 0 else "accel" if self.accel > 0 else "quiet"

    @property
    def factor(self):
        """How many times as long things take on what the load leaves."""
        return 1 / (1 - self.accel / 100)

    def text(self):
        loads = []
        if self.kind == "ramp":
            loads.append(f"cpu={self.cpu[0]:g}-{self.cpu[1]:g}")
        elif self.kind == "cpu":
            loads.append(f"cpu={self.cpu[0]:g}")
        if self.accel > 0:
            loads.append(f"compute={self.factor:.6g},link={self.factor:.6g}")
        return f"{self.length:g}{self.unit}" + (":" + ",".join(loads) if loads else "")

    def label(self):
        return {"quiet": "no load", "cpu": f"CPU {self.cpu[0]:g} %",
                "accel": f"device, link {self.accel:g} %",
                "ramp": f"CPU {self.cpu[0]:g}-{self.cpu[1]:g} %"}[self.kind]


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    phases: tuple
    depth: int
    window: int  # tokens after which the context goes back to `depth`; 0: it grows
    bounds: dict  # least share by which the rise is to be smaller, by kind of phase

    def text(self):
        return ";".join(phase.text() for phase in self.phases)

    def starts(self):
        """Where the phases begin, and where the last one ends, in their unit."""
        at, starts = 0.0, [0.0]
        for phase in self.phases:
            at += phase.length
            starts.append(at)
        return starts


def load(seconds, cpu, accel):
    """`seconds`: of the five phases."""
    quiet, on_cpu, between, on_accel, after = seconds
    phases = (Phase(quiet), Phase(on_cpu, cpu=(cpu, cpu)), Phase(between),
              Phase(on_accel, accel=accel), Phase(after))
    return Experiment("load", "Load that comes and goes", phases, 1024, 256, LEAST_SMALLER)


def ramp(seconds, percent=30):
    """A CPU that gets slower with heat: over minutes, then stays so, then is cool again."""
    phases = (Phase(20), Phase(seconds, cpu=(0.0, percent)), Phase(30, cpu=(percent, percent)),
              Phase(15))
    return Experiment("ramp", "A CPU that slows down", phases, 1024, 256, {})


def long(tokens):
    return Experiment("long", "A long answer without load", (Phase(tokens, "t"),), 2048, 0, {})
