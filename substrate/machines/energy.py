"""Energy of a run: from a profile's powers if it is simulated, from counters if it is measured.

A document's ``metrics.energy`` says which: ``source``, joules by part, and why a figure is missing.
``energy_j`` and ``tokens_per_kj`` (DAOP, Table IV) cover prefill and decode of all batches, idle
parts included.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from moebench.substrate.machines.profile import HardwareProfile
from moebench.substrate.machines.protocol import Lane
from moebench.substrate.machines.timeline import Timeline

#: Where Linux shows RAPL counters, of Intel's processors and of AMD's.
POWERCAP = Path("/sys/class/powercap")

# ----------------------------------------------------------------------------- the document


def figures(
    parts_j: Mapping[str, float], source: str | None, reason: str | None, tokens: int
) -> dict[str, Any]:
    """Return the energy figures of a document's ``metrics``; null ones if there is a reason.

    Args:
        parts_j: joules by part.
        reason: why the sum of parts is not the energy of the run; None if it is.
        tokens: the number of generated tokens.
    """
    joules = None if reason else sum(parts_j.values())
    return {
        "energy_j": None if joules is None else round(joules, 4),
        "tokens_per_kj": round(tokens / joules * 1e3, 4) if joules else None,
        "energy": {
            "source": source,
            "parts_j": {name: round(j, 4) for name, j in parts_j.items()},
            "reason": reason,
        },
    }


def simulated(
    profile: HardwareProfile, timeline: Timeline, seconds: float, tokens: int,
    launch_bound_ns: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Charge idle power of GPU and host all the time, and full power while their lanes are busy.

    While the GPU waits between launches of one operation, a share of its power above idle is
    charged (`Software.launch_bound_power`).  Copies and the control thread add nothing.  Profiles
    hold no powers of disk, memory and board.

    Args:
        seconds: time of all batches, prefill and decode.
        launch_bound_ns: `Timeline.launch_bound_ns`.
        tokens: the number of generated tokens.
    """
    parts = {}
    for name, part, lane in (("gpu", profile.gpu, Lane.DEVICE), ("host", profile.host, Lane.HOST)):
        if part.idle_power is None or part.full_power is None:
            reason = f"profile {profile.name} states no idle and full power of its {name}"
            return figures({}, "simulated", reason, tokens)
        idle, full = part.idle_power.watts, part.full_power.watts
        parts[f"{name}, idle"] = idle * seconds
        bound_ns = launch_bound_ns if lane is Lane.DEVICE else 0
        parts[f"{name}, at work"] = (full - idle) * (timeline.busy_ns(lane) - bound_ns) / 1e9
        if bound_ns:
            share = profile.software.launch_bound_power.ratio
            parts[f"{name}, launch-bound"] = share * (full - idle) * bound_ns / 1e9
    return figures(parts, "simulated", None, tokens)


# ----------------------------------------------------------------------------- counters


class Counter(Protocol):
    """A counter of the energy that a hardware part has used since an arbitrary moment."""

    @property
    def name(self) -> str:
        """The name of the part."""

    def read_j(self) -> float:
        """Return the counter's joules; OSError if it cannot be read."""

    @property
    def wraps_at_j(self) -> float | None:
        """The joules at which the counter restarts at 0; None if it never does."""


@dataclass(frozen=True, slots=True)
class RaplZone:
    """The energy counter of a zone of Linux's powercap tree (RAPL)."""

    name: str
    folder: Path

    def read_j(self) -> float:
        """Return the joules of the zone's file ``energy_uj``."""
        return int((self.folder / "energy_uj").read_text()) / 1e6

    @property
    def wraps_at_j(self) -> float | None:
        """The joules of the zone's file ``max_energy_range_uj``, after which it restarts at 0."""
        return (int((self.folder / "max_energy_range_uj").read_text()) + 1) / 1e6


def rapl_zones(powercap: Path) -> list[RaplZone]:
    """Return the zones of every processor package and its memory in a powercap tree.

    A package includes its cores, but not its memory.  ``psys`` includes the package again, and
    ``intel-rapl-mmio`` is the same counter.
    """
    zones = []
    for folder in sorted(powercap.glob("intel-rapl:*")):
        name = (folder / "name").read_text().strip()
        if name.startswith("package-"):
            zones.append(RaplZone(f"host {name}", folder))
        elif name == "dram":
            package = (powercap / folder.name.rpartition(":")[0] / "name").read_text().strip()
            zones.append(RaplZone(f"host memory of {package}", folder))
    return zones


class NvmlCounter:
    """The energy counter of an NVIDIA GPU since its driver was loaded, read through NVML.

    Raises:
        ImportError: NVML's Python package is missing.
        OSError: there is no such GPU, or it counts no energy.
    """

    wraps_at_j = None

    def __init__(self, uuid: str) -> None:
        import pynvml  # type: ignore[import-not-found]

        self.name, self._nvml = "gpu", pynvml
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error

    def read_j(self) -> float:
        """Return the joules of NVML's counter, which is in millijoules."""
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error


# ----------------------------------------------------------------------------- meters


@dataclass(slots=True)
class Meter:
    """Adds up the energy that counters gain while the meter is entered, batch by batch.

    It includes other programs on these parts.  A counter may wrap once in a batch; RAPL's wrap
    after a quarter of an hour or more.

    Attributes:
        source: the interfaces of the counters; None without counters.
        reason: why the counters do not cover all of the run's energy.
    """

    source: str | None = None
    counters: Sequence[Counter] = ()
    reason: str | None = None
    joules: dict[str, float] = field(default_factory=dict)
    _since: list[float] = field(default_factory=list)

    def __enter__(self) -> Self:
        """Read the counters at the beginning of a batch."""
        with self._readable():
            self._since = [counter.read_j() for counter in self.counters]
        return self

    def __exit__(self, *error: object) -> None:
        """Add what the counters gained during a batch."""
        with self._readable():
            for counter, since in zip(self.counters, self._since, strict=True):
                gained = counter.read_j() - since
                if gained < 0 and counter.wraps_at_j is not None:
                    gained += counter.wraps_at_j
                self.joules[counter.name] = self.joules.get(counter.name, 0.0) + gained

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """End the measurement, not the run, if a counter can no longer be read."""
        try:
            yield
        except OSError as error:
            self.reason, self.counters = f"a counter could not be read: {error}", ()

    def figures(self, tokens: int) -> dict[str, Any]:
        """Return the energy figures of a document's ``metrics``; ``tokens`` were generated."""
        return figures(self.joules, self.source, self.reason, tokens)


NO_HOST = "no counter of the processor: {}"
NO_CARD = "no counter of the card: {}"


def open_meter(card: str | None, powercap: Path = POWERCAP) -> Meter:
    """Return a meter of this computer's energy counters: RAPL's, and NVML's of a GPU that computes.

    Args:
        card: UUID of the CUDA device that computes; None if none does.
    """
    counters, missing = _host_counters(powercap)
    sources = ["RAPL"] if counters else []
    if card is not None:
        try:
            counters.append(NvmlCounter(card))
            sources.append("NVML")
        except (ImportError, OSError) as error:
            missing.append(NO_CARD.format(error))
    return Meter(" and ".join(sources) or None, counters, "; ".join(missing) or None)


def _host_counters(powercap: Path) -> tuple[list[Counter], list[str]]:
    """Return the readable RAPL counters, and reasons if there are none."""
    try:
        zones = rapl_zones(powercap)
        for zone in zones:
            zone.read_j()
    except (OSError, ValueError) as error:  # readable by root alone, on most systems
        return [], [NO_HOST.format(error)]
    return [*zones], [] if zones else [NO_HOST.format(f"no RAPL zone in {powercap}")]
