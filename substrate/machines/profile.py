"""A hardware profile: one box (GPU, link, host, disk, software) as numbers with their origin.

Profiles are YAML.  A number is never bare: it is a mapping ``{value, unit, source, badge}``, so
that every latency computed from it can say how far it is to be trusted.  A `HardwareProfile` is
inert; `load_profile` is the only function here that reads a file.

A kind of software is the same on every machine and stands in the catalogue; a profile may state
what a kind costs on its own box: ``software: {lean: {launch: ...}}``.
"""

import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, StrictBool, ValidationError, model_validator

from moebench.substrate.choices import DEFAULT_SOFTWARE as DEFAULT_SOFTWARE
from moebench.substrate.errors import ProfileError, UnknownNameError, UsageError
from moebench.substrate.files import brief, parse_yaml, read_text
from moebench.substrate.machines.measured_times import Measured
from moebench.substrate.machines.quantity import (
    Bandwidth,
    Compute,
    Count,
    Efficiency,
    Inert,
    Memory,
    Power,
    Quantity,
    Ratio,
    Time,
)

ProfileBadge = Literal["calibrated", "datasheet", "estimate"]

MACHINES = Path(__file__).parents[1] / "catalogue" / "machines"
SOFTWARE = Path(__file__).parents[1] / "catalogue" / "software"


class Gpu(Inert):
    """The device.  Peaks come with the fraction that real kernels reach."""

    name: str = Field(min_length=1)
    memory: Memory
    reserved_memory: Memory  #: CUDA context and workspace: never available to weights
    bandwidth: Bandwidth
    large_read_efficiency: Efficiency  #: reads of at least 20 MB
    small_read_efficiency: Efficiency  #: reads below 20 MB
    tensor_bf16: Compute  #: with fp32 accumulation
    tensor_efficiency: Efficiency
    idle_power: Power | None = None  #: None where nobody knows: then no energy is given
    full_power: Power | None = None


class Link(Inert):
    """Host to device: the slower of what the GPU and the host can do."""

    name: str = Field(min_length=1)
    pinned_h2d: Bandwidth
    pinned_d2h: Bandwidth
    pageable_h2d: Bandwidth
    in_engine_efficiency: Efficiency  #: of a benchmark's copies, reached between kernels
    copy_fixed: Time  #: device side, per copy
    pinned: StrictBool = True  #: whether this box's software copies experts from pinned memory

    def h2d(self, pinned: bool | None = None) -> Bandwidth:
        """The bandwidth of copies to the device; by default as this box's software copies."""
        return self.pinned_h2d if (self.pinned if pinned is None else pinned) else self.pageable_h2d


class Host(Inert):
    """The CPU and its memory."""

    name: str = Field(min_length=1)
    cores: Count
    memory: Memory
    gemv_bandwidth: Bandwidth
    peak_fp32: Compute
    gemm_efficiency: Efficiency
    handoff: Time  #: giving one task to the host's threads
    idle_power: Power | None = None  #: None where nobody knows: then no energy is given
    full_power: Power | None = None


class Disk(Inert):
    """An SSD: ``access_latency + bytes / bandwidth``; behind another read the latter alone."""

    name: str = Field(min_length=1)
    queue1_bandwidth: Bandwidth  #: one large read at a time
    max_bandwidth: Bandwidth  #: several in flight
    access_latency: Time


class Software(Inert):
    """What runs a model: costs of the control thread, and the kernels that a layer's parts launch.

    ``layer`` and ``expert`` are totals, the launches of attention, gate and sum, or of the expert,
    included; 0 where launches are all.  What they exceed these by is charged with the layer's
    attention, and with an expert wherever it is computed.
    """

    name: str = Field(min_length=1)
    description: str = Field(min_length=1)
    launch: Time  #: per kernel
    sync: Time  #: host waits for the device
    decision: Time  #: the system's own Python, per MoE layer
    copy_submit: Time  #: per copy
    hook: Time  #: what a module's hook adds to each tensor that it brings (Accelerate)
    layer: Time  #: the least of a layer without its experts
    expert: Time  #: the least of an expert
    waits_each_layer: StrictBool  #: whether the next layer is launched after this one has ended
    launches_attention: Count
    launches_gate: Count
    launches_expert: Count
    launches_shared: Count
    launches_head: Count


def _rises(idle: Power | None, full: Power | None) -> bool:
    return idle is None or full is None or idle.watts < full.watts


class Calibration(Inert):
    """Says that the profile was fitted on a machine, when, and how far off it still is."""

    date: datetime.date
    error: Ratio
    machine: str = Field(min_length=1)


class HardwareProfile(Inert):
    """Everything a cost model may ask about a box."""

    name: str = Field(min_length=1)
    description: str = Field(min_length=1)
    gpu: Gpu
    link: Link
    host: Host
    disk: Disk
    software: Software
    calibration: Calibration | None = None
    measured: Measured | None = None  #: times of one model's operations, where there are any

    @model_validator(mode="after")
    def _ordered(self) -> "HardwareProfile":
        gpu, host, disk = self.gpu, self.host, self.disk
        rules = {
            "gpu.reserved_memory < gpu.memory": gpu.reserved_memory.bytes < gpu.memory.bytes,
            "gpu.idle_power < gpu.full_power": _rises(gpu.idle_power, gpu.full_power),
            "host.idle_power < host.full_power": _rises(host.idle_power, host.full_power),
            "disk.queue1_bandwidth <= disk.max_bandwidth": (
                disk.queue1_bandwidth.bytes_per_s <= disk.max_bandwidth.bytes_per_s
            ),
        }
        for rule, holds in rules.items():
            if not holds:
                raise ValueError(f"impossible pair of numbers; allowed: {rule}")
        return self

    @property
    def badge(self) -> ProfileBadge:
        """How good its numbers are, from their own badges alone.

        One estimate makes it an estimate; without any, one that was fitted makes it calibrated.

        A run's badge may be better, where estimates hardly move it (`harness.run.interval`).
        """
        if self.estimates:
            return "estimate"
        fitted = any(number.badge == "calibrated" for _, number in self.quantities())
        return "calibrated" if fitted else "datasheet"

    @property
    def numbers(self) -> int:
        """How many numbers the profile holds."""
        return sum(1 for _ in self.quantities())

    @property
    def estimates(self) -> int:
        """How many of them are estimates."""
        return sum(number.badge == "estimate" for _, number in self.quantities())

    def quantities(self) -> Iterator[tuple[str, Quantity]]:
        """Every number with the field that it stands in, for example ``link.pinned_h2d``."""

        def walk(part: object, field: str) -> Iterator[tuple[str, Quantity]]:
            if isinstance(part, Quantity):
                yield field, part
            elif isinstance(part, BaseModel):
                for name, inner in part:
                    yield from walk(inner, f"{field}.{name}" if field else name)

        return walk(self, "")

    def content_hash(self) -> str:
        """16 hexadecimal digits that change whenever anything in the profile does.

        What a profile does not say is not in them, so that a new optional field changes none.
        """
        said = self.model_dump(mode="json", exclude_defaults=True)
        text = json.dumps(said, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def from_mapping(
        cls, data: object, where: str = "profile", software: str = DEFAULT_SOFTWARE
    ) -> "HardwareProfile":
        """Check what a YAML file held, with a kind of software: its own, or the catalogue's.

        Raises:
            ProfileError: one line with `where`, the first bad field, and what it may hold.
            UnknownNameError: no such kind of software.
        """
        check_software(software)
        try:
            return cls.model_validate(_with_software(data, software, where))
        except ValidationError as error:
            raise ProfileError(f"{where}: {_explain(error)}") from error


# ------------------------------------------------------------------------- finding and reading


def profile_names() -> list[str]:
    """Names of the catalogue's machines, sorted."""
    return sorted(path.stem for path in MACHINES.glob("*.yaml"))


def software_names() -> list[str]:
    """Names of the kinds of software, sorted."""
    return sorted(path.stem for path in SOFTWARE.glob("*.yaml"))


def is_file(machine: str) -> bool:
    """Whether a machine is named by the path of its profile."""
    return machine.endswith((".yaml", ".yml"))


def check_software(kind: str) -> None:
    """Refuse an unknown kind of software.

    Raises:
        UnknownNameError: with the kinds that there are.
    """
    if kind not in software_names():
        raise UnknownNameError("software", kind, software_names())


def load_software(kind: str) -> Software:
    """A kind of software as the catalogue states it.

    Raises:
        UnknownNameError: no such kind.
        ProfileError: its file misses or misstates a number.
    """
    check_software(kind)
    path = SOFTWARE / f"{kind}.yaml"
    try:
        return Software.model_validate(_read_yaml(path))
    except ValidationError as error:
        raise ProfileError(f"{path}: {_explain(error, Software)}") from error


def load_profile(name_or_path: str, software: str = DEFAULT_SOFTWARE) -> HardwareProfile:
    """Load a machine of the catalogue by name, or any file by a path: ``.yaml`` or ``.yml``.

    Args:
        software: the kind of software that runs there.

    Raises:
        UnknownNameError: no such machine, or no such kind of software.
        UsageError: ``local``, which is a machine but not a stored profile.
        ProfileError: the file cannot be read, is not YAML, or misses or misstates a number.
    """
    if is_file(name_or_path):
        return _profile(_text(Path(name_or_path)), name_or_path, software)
    known = profile_names()
    if name_or_path == "local":
        raise UsageError(
            "machine 'local' is this computer: it is measured and has no profile; "
            "allowed: a name from `moebench list machines`, or a path that ends in .yaml or .yml"
        )
    if name_or_path not in known:
        raise UnknownNameError("machine", name_or_path, [*known, "local"])
    path = MACHINES / f"{name_or_path}.yaml"
    return _profile(_text(path), str(path), software)


def _with_software(data: object, kind: str, where: str) -> object:
    """A profile's mapping with one kind of software in place of those that it states."""
    if not isinstance(data, Mapping):
        return data
    own = data.get("software", {})
    kinds = software_names()
    if not isinstance(own, Mapping) or not set(own) <= set(kinds):
        raise ProfileError(
            f"{where}: software: expected costs by kind of software; allowed kinds: "
            f"{', '.join(kinds)}"
        )
    chosen = own[kind] if kind in own else _read_yaml(SOFTWARE / f"{kind}.yaml")
    return {**data, "software": chosen}


def _text(path: Path) -> str:
    hint = "; allowed: a readable .yaml file, or a name from `moebench list machines`"
    return read_text(path, ProfileError, hint)


@lru_cache
def _profile(text: str, path: str, software: str) -> HardwareProfile:
    """Return the profile in a file's text; parsing takes 20 ms, and every cell of a sweep asks."""
    return HardwareProfile.from_mapping(_parsed(text, path), path, software)


def _read_yaml(path: Path) -> object:
    return _parsed(_text(path), str(path))


def _parsed(text: str, path: str) -> object:
    return parse_yaml(text, f"{path}: not valid YAML", ProfileError, "; allowed: UTF-8 YAML")


def _explain(error: ValidationError, top: type[BaseModel] = HardwareProfile) -> str:
    """The first complaint as ``field: what is wrong; allowed: ...``."""
    detail = error.errors(include_url=False)[0]
    kind, given = detail["type"], brief(detail["input"])
    problems = {
        "missing": "missing",
        "extra_forbidden": "unknown field",
        "model_type": f"expected a mapping, got {given}",
        "value_error": str(detail.get("ctx", {}).get("error")),
    }
    problem = problems.get(kind) or f"{detail['msg']}, got {given}"
    model = _innermost(detail["loc"], top)
    if issubclass(model, Quantity):
        problem += f"; allowed: {model.allowed()}"
    elif kind in ("missing", "extra_forbidden", "model_type"):
        problem += f"; allowed: fields {', '.join(model.model_fields)}"
    return f"{'.'.join(map(str, detail['loc'])) or 'top level'}: {problem}"


def _innermost(loc: tuple[int | str, ...], model: type[BaseModel]) -> type[BaseModel]:
    """The last model on the way to a field, from the one that holds everything."""
    for key in loc:
        info = model.model_fields.get(str(key))
        kinds: tuple[Any, ...] = (info.annotation, *get_args(info.annotation)) if info else ()
        model = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), model)
    return model
