"""A hardware profile: a machine (GPU, link, host, disk, software) as numbers with their sources.

Profiles are YAML.  Each number is a mapping ``{value, unit, source, badge}``; the badge states how
far it, and a latency computed from it, can be trusted.  Only `load_profile` reads files.

The catalogue states the costs of each kind of software for all machines; a profile may state
its own machine's: ``software: {lean: {launch: ...}}``.
"""

import datetime
import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, PrivateAttr, StrictBool, ValidationError, model_validator

from moebench.substrate.choices import DEFAULT_SOFTWARE as DEFAULT_SOFTWARE
from moebench.substrate.errors import ProfileError, UnknownNameError, UsageError
from moebench.substrate.files import brief, parse_yaml, read_text
from moebench.substrate.machines.compose import canonical, composed, is_composed
from moebench.substrate.machines.measured_times import Measured
from moebench.substrate.machines.parts import nearest
from moebench.substrate.machines.quantity import (
    Bandwidth,
    Compute,
    Count,
    Efficiency,
    Inert,
    Memory,
    Power,
    PowerShare,
    Quantity,
    Ratio,
    Time,
    WeightRate,
)

#: Numbers of a kind of software that few runs use: those with quantised experts on the host, and
#: the energy of a GPU.  A profile need not state them, and they do not lower its badge.
SPECIAL = (
    "launch_bound_power", "host_fused_8bit", "host_fused_4bit", "host_fused_2bit", "host_unpacking",
)  # fmt: skip

ProfileBadge = Literal["calibrated", "datasheet", "estimate"]

MACHINES = Path(__file__).parents[1] / "catalogue" / "machines"
SOFTWARE = Path(__file__).parents[1] / "catalogue" / "software"


class Gpu(Inert):
    """The GPU: peak rates, each with the fraction of it that real kernels reach."""

    name: str = Field(min_length=1)
    memory: Memory
    reserved_memory: Memory  #: CUDA context and workspace: never available to weights
    bandwidth: Bandwidth
    large_read_efficiency: Efficiency  #: reads of at least 20 MB
    small_read_efficiency: Efficiency  #: reads below 20 MB
    tensor_bf16: Compute  #: with fp32 accumulation
    tensor_efficiency: Efficiency
    idle_power: Power | None = None  #: None if unknown: then energy is not reported
    full_power: Power | None = None


class Link(Inert):
    """The link between host and GPU, at the rate of the slower end."""

    name: str = Field(min_length=1)
    pinned_h2d: Bandwidth
    pinned_d2h: Bandwidth
    pageable_h2d: Bandwidth
    in_engine_efficiency: Efficiency  #: share of a benchmark's rate that an engine reaches
    copy_fixed: Time  #: device side, per copy
    pinned: StrictBool = True  #: whether its software copies from page-locked memory

    def h2d(self, pinned: bool | None = None) -> Bandwidth:
        """Return the bandwidth of copies to the device, by default as the software copies."""
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
    #: Quantised weights that one core multiplies with one row, by fused kernels; None if only the
    #: memory's bandwidth is known to limit them.
    core_rate: WeightRate | None = None
    #: What copies to the device and products on the host share where they overlap; None if both
    #: together do not reach it.
    shared_bandwidth: Bandwidth | None = None
    #: Whether ``gemv_bandwidth`` was inferred from the time of an expert, which holds its dispatch.
    gemv_holds_dispatch: StrictBool = False
    idle_power: Power | None = None  #: None if unknown: then energy is not reported
    full_power: Power | None = None


class Disk(Inert):
    """An SSD: a read takes ``access_latency + bytes / bandwidth``; a queued one no latency."""

    name: str = Field(min_length=1)
    queue1_bandwidth: Bandwidth  #: one large read at a time
    max_bandwidth: Bandwidth  #: several in flight
    access_latency: Time


class Software(Inert):
    """A kind of software: costs of the control thread, and kernels launched by parts of a layer.

    ``layer`` and ``expert`` are totals that include the launches of attention, gate and sum, or of
    the expert; 0 if launches are all.  The excess is charged with the layer's attention, and with
    each expert wherever it is computed.

    ``host_fused_*`` and ``host_unpacking`` are of quantised experts on the host
    (`substrate.choices.HostKernels`).  ``host_kernel_gain`` and ``host_rows_gain`` are of engines
    whose own kernels multiply there: None is llama.cpp's rate, and the host's ``gemm_efficiency``.
    """

    name: str = Field(min_length=1)
    description: str = Field(min_length=1)
    launch: Time  #: per kernel
    sync: Time  #: host waits for the device
    decision: Time  #: the system's own Python, per MoE layer
    copy_submit: Time  #: per copy
    hook: Time  #: time of a module's hook for each tensor that it copies (Accelerate)
    layer: Time  #: least time of a layer without its experts
    expert: Time  #: least time of an expert
    waits_each_layer: StrictBool  #: whether the next layer is launched after this one has ended
    launch_bound_power: PowerShare  #: of the GPU's power above idle, while launches keep it waiting
    host_fused_8bit: Efficiency  #: of the host's bandwidth, on the bytes of quantised weights
    host_fused_4bit: Efficiency
    host_fused_2bit: Efficiency
    host_unpacking: Ratio  #: time of unpacking weights over that of their product in bf16
    #: Share of the rate of large reads at which a decoded token's attention reads the KV cache on
    #: the device, and a cache of latent vectors; None is all, and `costs.LATENT_READS`.
    attention_reads: Efficiency | None = None
    latent_reads: Efficiency | None = None
    host_attention: Efficiency | None = None  #: the same on the host, of its bandwidth
    #: Rows whose products take as long as unpacking a quantised expert on the device, in products
    #: of several rows; None is 0.
    unpacking_rows: Count | None = None
    host_kernel_gain: Ratio | None = None  #: rate of fused kernels for one row, over llama.cpp's
    host_rows_gain: Ratio | None = None  #: a core's rate with many rows, over that with one
    launches_attention: Count
    launches_gate: Count
    launches_expert: Count
    launches_shared: Count
    launches_head: Count


def _rises(idle: Power | None, full: Power | None) -> bool:
    return idle is None or full is None or idle.watts < full.watts


class Calibration(Inert):
    """The calibration of a profile: its date, its machine, and the remaining error."""

    date: datetime.date
    error: Ratio
    machine: str = Field(min_length=1)


class HardwareProfile(Inert):
    """All numbers about a machine that a cost model uses."""

    name: str = Field(min_length=1)
    description: str = Field(min_length=1)
    gpu: Gpu
    link: Link
    host: Host
    disk: Disk
    software: Software
    calibration: Calibration | None = None
    measured: Measured | None = None  #: times of one model's operations, where there are any
    #: Device and host share one memory, so nothing has to be offloaded; what the device holds
    #: counts against the host's memory.
    pool: StrictBool = False
    #: Numbers of the profile's own software that it does not state, see `SPECIAL`.
    _not_stated: tuple[str, ...] = PrivateAttr(default=())

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
        """The worst badge of the numbers that every run uses: estimate, else calibrated, datasheet.

        A run's badge may be better, if estimates hardly change it, or worse, if it uses others
        (`harness.run.interval`).
        """
        special = {f"software.{name}" for name in SPECIAL}
        badges = {number.badge for field, number in self.quantities() if field not in special}
        worst: tuple[ProfileBadge, ...] = ("estimate", "calibrated")
        return next((badge for badge in worst if badge in badges), "datasheet")

    @property
    def numbers(self) -> int:
        """The number of numbers in the profile."""
        return sum(1 for _ in self.quantities())

    @property
    def estimates(self) -> int:
        """The number of estimates among the profile's numbers."""
        return sum(number.badge == "estimate" for _, number in self.quantities())

    def quantities(self) -> Iterator[tuple[str, Quantity]]:
        """Yield every number with its field, for example ``link.pinned_h2d``."""

        def walk(part: object, field: str) -> Iterator[tuple[str, Quantity]]:
            if isinstance(part, Quantity):
                yield field, part
            elif isinstance(part, BaseModel):
                for name, inner in part:
                    yield from walk(inner, f"{field}.{name}" if field else name)

        return walk(self, "")

    def content_hash(self) -> str:
        """Return 16 hexadecimal digits that change with any value of the profile.

        Default values are left out, so that a new optional field changes no hash; so are numbers
        that a profile with software of its own takes from the catalogue.
        """
        said = self.model_dump(mode="json", exclude_defaults=True)
        for name in self._not_stated:
            del said["software"][name]
        text = json.dumps(said, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def from_mapping(
        cls, data: object, where: str = "profile", software: str = DEFAULT_SOFTWARE
    ) -> "HardwareProfile":
        """Check a YAML file's content; add a kind of software, its own or the catalogue's.

        Raises:
            ProfileError: one line with `where`, the first bad field, and what it may hold.
            UnknownNameError: no such kind of software.
        """
        check_software(software)
        try:
            found = cls.model_validate(_with_software(data, software, where))
        except ValidationError as error:
            raise ProfileError(f"{where}: {_explain(error)}") from error
        own = data.get("software", {}).get(software) if isinstance(data, Mapping) else None
        if own is not None:
            found._not_stated = tuple(name for name in SPECIAL if name not in own)
        return found


# ------------------------------------------------------------------------- finding and reading


def profile_names() -> list[str]:
    """Return the names of the catalogue's machines, sorted."""
    return sorted(path.stem for path in MACHINES.glob("*.yaml"))


def software_names() -> list[str]:
    """Return the names of the kinds of software, sorted."""
    return sorted(path.stem for path in SOFTWARE.glob("*.yaml"))


def is_file(machine: str) -> bool:
    """Return whether a machine's name is the path of a profile."""
    return machine.endswith((".yaml", ".yml"))


def check_software(kind: str) -> None:
    """Refuse an unknown kind of software.

    Raises UnknownNameError: with the kinds that there are.
    """
    if kind not in software_names():
        raise UnknownNameError("software", kind, software_names())


def load_software(kind: str) -> Software:
    """Load a kind of software from the catalogue.

    Raises:
        UnknownNameError: no such kind.
        ProfileError: its file misses or misstates a number.
    """
    check_software(kind)
    path = SOFTWARE / f"{kind}.yaml"
    try:
        return Software.model_validate(_software(_text(path), str(path)))
    except ValidationError as error:
        raise ProfileError(f"{path}: {_explain(error, Software)}") from error


def load_profile(name_or_path: str, software: str = DEFAULT_SOFTWARE) -> HardwareProfile:
    """Load a machine of the catalogue by name, of parts, or of a ``.yaml`` or ``.yml`` file.

    Numbers may follow the name that replace those of the profile, for a question such as "what if
    the host were slower": ``a6000+host.gemv_bandwidth=26``, in the profile's own unit.

    Args:
        name_or_path: a name of the catalogue, a list of parts (`compose`), or a path.
        software: the kind of software that runs there.

    Raises:
        UnknownNameError: no such machine, or no such kind of software.
        UsageError: ``local``, which is a machine but not a stored profile; or parts that do not
            exist or do not fit.
        ProfileError: the file cannot be read, is not YAML, or misses or misstates a number.
    """
    name_or_path, numbers = split_numbers(name_or_path)
    if numbers:
        return with_numbers(load_profile(name_or_path, software), numbers)
    if is_file(name_or_path):
        return _profile(_text(Path(name_or_path)), name_or_path, software)
    known = profile_names()
    if name_or_path == "local":
        raise UsageError(
            "machine 'local' is this computer: it is measured and has no profile; "
            "allowed: a name from `moebench list machines`, or a path that ends in .yaml or .yml"
        )
    if name_or_path not in known:
        if is_composed(name_or_path):
            return _of_parts(canonical(name_or_path), software)
        similar = nearest(name_or_path, ("gpus", "pools"), 0.75)
        hint = "parts: moebench machines list --parts" if similar else ""
        raise UnknownNameError("machine", name_or_path, [*known, "local", *similar], hint)
    path = MACHINES / f"{name_or_path}.yaml"
    return _profile(_text(path), str(path), software)


def _with_software(data: object, kind: str, where: str) -> object:
    """Return a profile's mapping with one kind of software, in place of those that it states.

    The catalogue has those of `SPECIAL` that the profile does not state.
    """
    if not isinstance(data, Mapping):
        return data
    own = data.get("software", {})
    kinds = software_names()
    if not isinstance(own, Mapping) or not set(own) <= set(kinds):
        raise ProfileError(
            f"{where}: software: expected costs by kind of software; allowed kinds: "
            f"{', '.join(kinds)}"
        )
    path = SOFTWARE / f"{kind}.yaml"
    chosen = known = _software(_text(path), str(path))
    if kind in own:
        chosen = own[kind]
        if isinstance(known, Mapping) and isinstance(chosen, Mapping):
            chosen = {name: known[name] for name in SPECIAL} | dict(chosen)
    return {**data, "software": chosen}


def _text(path: Path) -> str:
    hint = "; allowed: a readable .yaml file, or a name from `moebench list machines`"
    return read_text(path, ProfileError, hint)


@lru_cache
def _profile(text: str, path: str, software: str) -> HardwareProfile:
    """Return the profile in a file's text; parsing takes 20 ms, and every cell of a sweep asks."""
    return HardwareProfile.from_mapping(_parsed(text, path), path, software)


@lru_cache
def _of_parts(text: str, software: str) -> HardwareProfile:
    return HardwareProfile.from_mapping(composed(text), f"machine {text}", software)


#: The beginning of a number that follows a machine's name, before its value.
_NUMBER = re.compile(r"\+[a-z]\w*\.\w+=")


def split_numbers(machine: str) -> tuple[str, dict[str, float]]:
    """Split a machine's name from the numbers that replace those of its profile, by field.

    Raises UsageError: the value of a field is not a number, a field is there twice, or something
        other than numbers follows.
    """
    first = _NUMBER.search(machine)
    if first is None:
        return machine, {}
    numbers: dict[str, float] = {}
    for text in machine[first.start() + 1 :].split("+"):
        field, equals, value = text.partition("=")
        if not equals or "." not in field or field in numbers:
            raise UsageError(
                f"machine {machine}: +{text}: allowed after a number: +FIELD=NUMBER, each field "
                "once, such as +link.pinned_h2d=20; parts come before"
            )
        try:
            numbers[field] = float(value)
        except ValueError as error:
            raise UsageError(f"machine {machine}: {field}={value}: allowed: a number") from error
    return machine[: first.start()], numbers


def machine_with(machine: str, numbers: Mapping[str, float]) -> str:
    """Return a machine's name followed by numbers that replace those of its profile."""
    return machine + "".join(f"+{field}={value:.12g}" for field, value in sorted(numbers.items()))


def with_numbers(profile: "HardwareProfile", numbers: Mapping[str, float]) -> "HardwareProfile":
    """Return a profile with other values of some of its numbers, each in its own unit.

    Raises UsageError: a field that is no number of the profile, or a value that it cannot have.
    """
    known = dict(profile.quantities())
    for field, value in numbers.items():
        if field not in known:
            allowed = ", ".join(difflib.get_close_matches(field, known, 3) or sorted(known))
            raise UsageError(f"machine {profile.name}: no number {field}; allowed: {allowed}")
        old = known[field]
        said = {
            "value": value,
            "unit": old.unit,
            "badge": "estimate",
            "source": "given with the machine's name",
        }
        try:
            number = type(old).model_validate(said)
        except ValidationError as error:
            raise UsageError(
                f"machine {profile.name}: {field}={value:g} {old.unit}: allowed: "
                f"{type(old).limits(old.unit)}"
            ) from error
        profile = with_number(profile, field, number)
    stated = {field.removeprefix("software.") for field in numbers}
    profile._not_stated = tuple(name for name in profile._not_stated if name not in stated)
    return profile


def with_number(profile: "HardwareProfile", field: str, number: Quantity) -> "HardwareProfile":
    """Return a copy of a profile with another number in a field, unchecked."""

    def replaced(part: Any, path: Sequence[str]) -> Any:
        if not path:
            return number
        name, *rest = path
        return part.model_copy(update={name: replaced(getattr(part, name), rest)})

    changed: HardwareProfile = replaced(profile, field.split("."))
    return changed


def machine_name(machine: str) -> str:
    """Return the one spelling of a machine's name; only lists of parts have several.

    Raises UsageError: parts that do not exist or do not fit.
    """
    base, numbers = split_numbers(machine)
    if not (is_file(base) or base in (*profile_names(), "local") or not is_composed(base)):
        base = canonical(base)
    return machine_with(base, numbers)


@lru_cache
def _software(text: str, path: str) -> object:
    """Return the costs of a kind of software, which every machine has and nothing changes."""
    return _parsed(text, path)


def _parsed(text: str, path: str) -> object:
    return parse_yaml(text, f"{path}: not valid YAML", ProfileError, "; allowed: UTF-8 YAML")


def _explain(error: ValidationError, top: type[BaseModel] = HardwareProfile) -> str:
    """Return the first validation error as ``field: problem; allowed: ...``."""
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
    """Return the innermost model on the path to a field, starting at the top model."""
    for key in loc:
        info = model.model_fields.get(str(key))
        kinds: tuple[Any, ...] = (info.annotation, *get_args(info.annotation)) if info else ()
        model = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), model)
    return model
