"""Reads this computer's hardware from system programs, and drafts a hardware profile from it.

Nothing is timed here; `moebench calibrate` measures.  Numbers that no program reports are marked as
estimates.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from moebench.substrate.errors import UsageError
from moebench.substrate.machines.profile import HardwareProfile, load_profile, profile_names
from moebench.substrate.machines.profile_fields import FIELDS
from moebench.substrate.machines.quantity import Quantity

#: Runs a program and returns its output, or None if it is missing or fails.
Ask = Callable[[Sequence[str]], str | None]

#: Machine of the catalogue whose numbers replace unknown ones.
STAND_IN = "a6000"

#: Rate of one PCIe lane after encoding, in GB/s, by PCIe generation.
_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
#: Share of the link's rate that copies of page-locked memory reach as measured: 26 of 31.5 GB/s.
_OF_LINK = 0.825


class Reading(NamedTuple):
    """A hardware number that was read from this computer or derived from such numbers."""

    value: float
    unit: str
    source: str
    badge: str = "measured"
    range: tuple[float, float] | None = None


class Card(NamedTuple):
    """A GPU as nvidia-smi reports it: memory in GiB, power limit in W; None is not reported."""

    name: str
    memory_gib: float | None
    power_w: float | None
    generation: int | None
    lanes: int | None


class Survey(NamedTuple):
    """Names and numbers of this computer's hardware as far as programs report them.

    Attributes:
        names: the known names of ``gpu``, ``link``, ``host`` and ``disk``.
        readings: numbers by field of a hardware profile.
    """

    names: dict[str, str]
    readings: dict[str, Reading]


def ask(command: Sequence[str]) -> str | None:
    """Run a program and return its output, or None if it is missing, fails or times out."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def survey(asked: Ask = ask, proc: Path = Path("/proc")) -> Survey:
    """Read this computer's GPU, link, processor, memory, and disk of the current folder."""
    names: dict[str, str] = {}
    readings: dict[str, Reading] = {}
    _card(asked, names, readings)
    _processor(asked, names, readings)
    _memory(proc, readings)
    _disk(asked, names)
    return Survey(names, readings)


def link_gb_s(found: Survey) -> float | None:
    """Return the rate of the GPU's link by its data sheet in GB/s; None if no program names it."""
    said = re.fullmatch(r"PCIe (\d)\.0 x(\d+)", found.names.get("link", ""))
    return None if said is None else _LANE[int(said[1])] * int(said[2])


# ----------------------------------------------------------------------------- the parts

_QUERY = ("name", "memory.total", "power.limit", "pcie.link.gen.max", "pcie.link.width.max")


def cards(asked: Ask) -> list[Card]:
    """Return this computer's NVIDIA GPUs as nvidia-smi reports them."""
    said = asked(["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"])
    found = []
    for line in (said or "").splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(_QUERY):
            memory, power, generation, lanes = map(_number, values[1:])
            known = generation in _LANE and lanes is not None
            found.append(
                Card(
                    values[0], memory and memory / 1024, power,
                    int(generation or 0) if known else None, int(lanes or 0) if known else None,
                )
            )  # fmt: skip
    return found


def _card(asked: Ask, names: dict[str, str], readings: dict[str, Reading]) -> None:
    card = next(iter(cards(asked)), None)
    if card is None:
        return
    names["gpu"] = card.name
    for known in map(load_profile, profile_names()):
        if _plain(known.gpu.name) == _plain(card.name):
            for field, number in known.quantities():
                if field.startswith("gpu."):
                    readings[field] = _of(number)
            break
    if card.memory_gib:
        readings["gpu.memory"] = Reading(card.memory_gib, "GiB", "nvidia-smi: memory.total")
    if card.power_w:
        readings["gpu.full_power"] = Reading(card.power_w, "W", "nvidia-smi: power.limit")
    if card.generation and card.lanes:
        most = _LANE[card.generation] * card.lanes
        names["link"] = f"PCIe {card.generation}.0 x{card.lanes}"
        for way in ("pinned_h2d", "pinned_d2h"):
            readings[f"link.{way}"] = Reading(
                round(_OF_LINK * most, 2), "GB/s",
                f"estimate: {_OF_LINK:.1%} of the {most:.4g} GB/s of {names['link']}, which "
                "nvidia-smi names", "estimate", (round(0.6 * most, 2), round(0.9 * most, 2)),
            )  # fmt: skip


def _plain(name: str) -> str:
    return re.sub(r"\b(nvidia|geforce)\b|[^a-z0-9]", "", name.lower())


def _of(number: Quantity) -> Reading:
    return Reading(number.value, number.unit, number.source, number.badge, number.range)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:  # [N/A]
        return None
    return value if 0 < value < 1e9 else None


def lscpu(asked: Ask) -> dict[str, str]:
    """Return the fields of lscpu without their colons, such as ``Model name``."""
    rows = _json(asked(["lscpu", "--json"]), "lscpu")
    found = {str(row.get("field")).rstrip(":"): row.get("data") for row in _flat(rows)}
    return {field: str(value).strip() for field, value in found.items() if value is not None}


def cache_bytes(asked: Ask) -> int:
    """Return the size of the last cache of the whole processor; 0 if lscpu does not name it."""
    said = lscpu(asked)
    names = ("L3 cache", "L3", "L2 cache", "L2")
    text = next((said[name] for name in names if name in said), "")
    size = re.match(r"([\d.]+) ?([KMG])", text)
    return 0 if size is None else round(float(size[1]) * 1024 ** ("KMG".index(size[2]) + 1))


def _processor(asked: Ask, names: dict[str, str], readings: dict[str, Reading]) -> None:
    said = lscpu(asked)
    if said.get("Model name"):
        names["host"] = said["Model name"]
    parts = [_number(said.get(key, "")) for key in ("Core(s) per socket", "Socket(s)")]
    if None in parts:
        return
    cores = float(parts[0] or 1) * float(parts[1] or 1)
    readings["host.cores"] = Reading(cores, "1", "lscpu: cores of all sockets")
    flags = said.get("Flags", "").split()
    wide = 64 if "avx512f" in flags else 32 if "avx2" in flags else 16
    clock = _number(said.get("CPU max MHz", ""))
    stated = "lscpu's highest clock" if clock else "a clock of 3 GHz, as lscpu names none"
    gflops = cores * wide * (clock or 3000.0) / 1e3
    readings["host.peak_fp32"] = Reading(
        round(gflops, 1), "GFLOPS", f"estimate: {cores:g} cores x {wide} FLOP a cycle x {stated}",
        "estimate",
    )  # fmt: skip


def _flat(rows: Any) -> list[dict[str, Any]]:
    """Return the rows of lscpu or lsblk as a flat list, since they may be nested."""
    found = []
    for row in rows:
        found += [row, *_flat(row.get("children", []))]
    return found


def memory_gib(proc: Path) -> float | None:
    """Return the size of the memory in GiB; None if it cannot be read."""
    try:
        said = (proc / "meminfo").read_text()
    except OSError:
        return None
    total = re.search(r"MemTotal:\s+(\d+) kB", said)
    return round(int(total[1]) / 2**20, 2) if total else None


def _memory(proc: Path, readings: dict[str, Reading]) -> None:
    gib = memory_gib(proc)
    if gib is not None:
        readings["host.memory"] = Reading(gib, "GiB", "/proc/meminfo: MemTotal")


def disk_fields(asked: Ask) -> dict[str, str]:
    """Return lsblk's fields of the disk that holds the current folder; empty if it is not known."""
    source = (asked(["findmnt", "-n", "-o", "SOURCE", "-T", os.curdir]) or "").strip()
    if not source.startswith("/dev/"):
        return {}
    # List the partition and the disk that contains it.
    said = asked(["lsblk", "--json", "-s", "-o", "NAME,TYPE,MODEL,TRAN,SIZE", source])
    for row in _flat(_json(said, "blockdevices")):
        if row.get("type") == "disk":
            return {key: str(text).strip() for key, text in row.items() if isinstance(text, str)}
    return {}


def _disk(asked: Ask, names: dict[str, str]) -> None:
    disk = disk_fields(asked)
    if disk:
        about = (disk.get(key) for key in ("model", "tran", "size", "name"))
        names["disk"] = " ".join(text for text in about if text)


def _json(text: str | None, key: str) -> Any:
    try:
        return json.loads(text or "{}").get(key, [])
    except ValueError:
        return []


# ----------------------------------------------------------------------------- the draft


def draft(name: str, found: Survey) -> str:
    """Return a profile as commented YAML, with read numbers and estimates for the others.

    Raises UsageError: the name is invalid or a machine of the catalogue has it.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9@._-]*", name) or name.endswith((".yaml", ".yml")):
        raise UsageError(
            f"machines init {name}: allowed: letters, digits and @ . _ -, without .yaml"
        )
    if name in (*profile_names(), "local"):
        raise UsageError(f"machines init {name}: a machine of the catalogue has this name")
    stand_in = load_profile(STAND_IN)
    lines = [
        f"# A draft by `moebench machines init {name}`.  What a program of this computer said has",
        "# the badge measured.  Every estimate is a guess until you replace it: write the number,",
        "# its source, and the badge datasheet (a vendor or a paper states it) or measured (you",
        "# timed it).  `range` is from the lowest to the highest that you think possible.  The",
        f"# profile's own badge follows from these: `moebench machines show {name}.yaml`.",
        f"name: {name}",
        f"description: {json.dumps(', '.join(_names(found).values()), ensure_ascii=False)}",
    ]
    for part in ("gpu", "link", "host", "disk"):
        lines += ["", f"{part}:", f"  name: {json.dumps(_names(found)[part], ensure_ascii=False)}"]
        for field in FIELDS:
            if field.startswith(f"{part}.") and field not in UNKNOWN:
                lines += _field(field, found.readings.get(field), stand_in)
    return "\n".join(lines) + "\n"


#: Numbers that no tool reports and that a catalogue's machine need not have.
UNKNOWN = ("host.core_rate", "host.shared_bandwidth")


def _names(found: Survey) -> dict[str, str]:
    return {
        part: found.names.get(part, f"unknown {what}; write its name here")
        for part, what in (("gpu", "card"), ("link", "link"), ("host", "host"), ("disk", "disk"))
    }


def _field(field: str, reading: Reading | None, stand_in: HardwareProfile) -> list[str]:
    about, name = FIELDS[field], field.rpartition(".")[2]
    lines = [f"  # {about.moves[0].upper()}{about.moves[1:]}.", f"  # Found: {about.where}."]
    if field in ("link.pinned", "host.gemv_holds_dispatch"):
        return [*lines, f"  {name}: {'true' if field == 'link.pinned' else 'false'}"]
    if reading is None:
        reading = _estimate(dict(stand_in.quantities())[field])
    parts = [f"value: {reading.value:.10g}", f"unit: {json.dumps(reading.unit)}"]
    if reading.range is not None:
        parts.append(f"range: [{reading.range[0]:.10g}, {reading.range[1]:.10g}]")
    parts.append(f"badge: {reading.badge}")
    source = json.dumps(reading.source, ensure_ascii=False)
    return [*lines, f"  {name}:", f"    {{{', '.join(parts)},", f"     source: {source}}}"]


def _estimate(number: Quantity) -> Reading:
    """Return a catalogue machine's number with a wide range, marked as an estimate."""
    low = min(number.value / 2, number.low.value)
    high = min(max(number.value * 2, number.high.value), number.MOST / number.UNITS[number.unit])
    if number.WHOLE:
        low, high = max(1.0, round(low)), round(high)
    return Reading(
        number.value, number.unit, f"estimate: unknown here; that of {STAND_IN} stands in",
        "estimate", (low, high),
    )  # fmt: skip
