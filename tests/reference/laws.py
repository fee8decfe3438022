"""Laws that documents of every system obey, whatever its rules.

*Conservation*: what is counted in several ways is equal.  *Scaling*: all rates times two and all
fixed times by two halve every latency.  *Monotonicity*: better hardware slows no system down, but
for scheduling anomalies, of which a run may show small ones.
"""

import copy
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from os import getpid
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from moebench.systems.registry import VARIANTS
from tests.reference.cases import CATALOGUE, SETTINGS, moebench
from tests.reference.inputs import Numbers, numbers

Document = dict[str, Any]

#: Settings and the slots with which the laws of changed machines are tried.
CHANGED = {"S3": 516, "F1": 384, "D1": 120}

#: Fields by which a machine is made faster, and by how much.
FASTER: dict[str, dict[str, float]] = {
    "link x 1.25": {"link.pinned_h2d": 1.25, "link.pinned_d2h": 1.25, "link.pageable_h2d": 1.25},
    "link x 2": {"link.pinned_h2d": 2, "link.pinned_d2h": 2, "link.pageable_h2d": 2},
    "host x 1.25": {"host.gemv_bandwidth": 1.25, "host.peak_fp32": 1.25},
    "host x 2": {"host.gemv_bandwidth": 2, "host.peak_fp32": 2},
    "hand-over / 2": {"host.handoff": 0.5},
    "GPU x 2": {"gpu.bandwidth": 2, "gpu.tensor_bf16": 2},
    "Python / 2": dict.fromkeys(
        (f"software.{name}" for name in
         ("launch", "sync", "decision", "copy_submit", "hook", "layer", "expert")), 0.5
    ),
    "disk x 2": {"disk.queue1_bandwidth": 2, "disk.max_bandwidth": 2, "disk.access_latency": 0.5},
}  # fmt: skip

#: Anomalies above the first share are listed; one above the second breaks the law.
LISTED, MOST = 0.001, 0.02

#: Systems whose own rule makes them slower on better hardware, the reason, and the most of it.
EXPLAINED = {
    "fiddler": (
        "it counts the host's time for each token, as its paper does, though up to the roofline an "
        "expert takes the same for one token as for many: with a faster link it loads more than "
        "it should", 0.5,
    ),
}  # fmt: skip

#: Largest difference from one half: durations are rounded to nanoseconds.
HALVED = 1e-5

#: A rounding of one nanosecond may change the schedule of a system that compares ends of work.
SCHEDULES = ("hybrimoe",)


def systems() -> Iterator[tuple[str, list[str]]]:
    """Yield every system and variant that reads recorded routing, and its options."""
    for variant, names in VARIANTS.items():
        for name in names:
            options = ["--system", name, "--variant", variant]
            if name == "gpu-only":
                options.append("--allow-overcommit")
            if (name, variant) == ("smoe", "shipped"):  # traces do not hold its prediction
                options += ["--set", "prefetch=none"]
            yield name if variant == "published" else f"{name} (shipped)", options


def conserved(document: Document, of: Numbers) -> list[str]:
    """Return the conservation laws that a document breaks.

    Args:
        of: the machine's numbers.
    """
    m, spec, memory = document["metrics"], document["spec"], document["memory"]
    batches = -(-spec["prompts"] // spec["batch"])
    wall_ms = m["e2e_ms"] * batches
    decode_ms = m["tpot_ms"]["mean"] * m["decoded_tokens"] / spec["batch"]
    tokens = m["decoded_tokens"] + spec["prompts"]
    stalls = sum(m["stall_ms"].values())
    laws = {
        "TTFT and steps are the end-to-end time": _near(
            m["ttft_ms"]["mean"] * batches + decode_ms, wall_ms
        ),
        "tokens/s counts all tokens over all time": _near(
            m["tokens_per_s"], tokens / wall_ms * 1e3, 1e-3
        ),
        "the device's work and stalls fit into the run": (
            m["lanes"]["device"] + stalls <= wall_ms * 1.0001 + 0.01
        ),
        "no lane is busier than the run": max(m["lanes"].values()) <= wall_ms * 1.0001 + 0.01,
        "slots fit into what was offered": memory["slot_bytes"] <= memory["offered_device_bytes"],
        "no more than the link can carry": m["bytes_h2d"] / 1e6 <= 1.0001 * m["lanes"]["h2d"]
        * max(of["link.pinned_h2d"], of["link.pageable_h2d"]) / 1e9,
        "the bound is below": not document["lossless"] or not (document["bound"] or {}).get(
            "tpot_ms"
        ) or document["bound"]["tpot_ms"] <= m["tpot_ms"]["mean"] * 1.000001,
    }  # fmt: skip
    for phase in ("prefill", "decode"):
        e = m["experts"][phase]
        used = e["hits"] + e["in_flight"] + e["loads"] + e["host"] + e["deferred"]
        laws[f"uses of {phase} are hits, loads, host and deferred"] = used == e["active"]
    if m["energy"]["source"] == "simulated":
        parts = m["energy"]["parts_j"]
        laws["energy is the sum of its parts"] = _near(m["energy_j"], sum(parts.values()))
        work_w = of["gpu.full_power"] - of["gpu.idle_power"]
        share = of["software.launch_bound_power"]
        device = m["device_ms"]
        laws["the device's busy time has two parts"] = _near(
            device["work"] + device["launch_bound"], m["lanes"]["device"]
        )
        expected = work_w * (device["work"] + share * device["launch_bound"]) / 1e3
        found = parts["gpu, at work"] + parts.get("gpu, launch-bound", 0.0)
        laws["the GPU's energy is power times time"] = _near(found, expected)
    return [law for law, holds in laws.items() if not holds]


def _near(found: float, expected: float, relative: float = 2e-4) -> bool:
    return abs(found - expected) <= max(relative * max(abs(found), abs(expected)), 2e-3)


# ----------------------------------------------------------------------------- changed machines


def changed(machine: str, factors: dict[str, float], path: Path) -> Path:
    """Write a copy of a shipped profile with some numbers multiplied, for every software."""
    profile = yaml.safe_load((CATALOGUE / "machines" / f"{machine}.yaml").read_text())
    kinds = {
        file.stem: yaml.safe_load(file.read_text())
        for file in (CATALOGUE / "software").glob("*.yaml")
    }
    profile = copy.deepcopy(profile) | {"software": kinds}
    for field, factor in factors.items():
        part, name = field.split(".")
        for owner in kinds.values() if part == "software" else [profile[part]]:
            owner[name]["value"] *= factor
            if "range" in owner[name]:
                owner[name]["range"] = [end * factor for end in owner[name]["range"]]
    path.write_text(yaml.safe_dump(profile))
    return path


def twice_as_fast(machine: str) -> dict[str, float]:
    """Return the factors that double every rate of a machine and halve every fixed time."""
    profile = yaml.safe_load((CATALOGUE / "machines" / f"{machine}.yaml").read_text())
    software = yaml.safe_load((CATALOGUE / "software" / "lean.yaml").read_text())
    parts = {**{part: profile[part] for part in ("gpu", "link", "host", "disk")},
             "software": software}  # fmt: skip
    found = {}
    for part, numbers_of in parts.items():
        for name, stated in numbers_of.items():
            if isinstance(stated, dict):
                unit = stated["unit"]
                if unit.endswith("/s") or unit.endswith("FLOPS"):
                    found[f"{part}.{name}"] = 2.0
                elif unit in ("ns", "us", "ms"):
                    found[f"{part}.{name}"] = 0.5
    return found


def latencies(document: Document) -> dict[str, float]:
    """Return the latencies that laws compare."""
    m = document["metrics"]
    return {"TPOT": m["tpot_ms"]["mean"], "TTFT": m["ttft_ms"]["mean"]}


def not_halved(system: str, before: Document, after: Document) -> list[str]:
    """Return the latencies of a machine that is twice as fast that are not half as long."""
    allowed = MOST if system.startswith(SCHEDULES) else HALVED
    now = latencies(after)
    return [
        f"{name} {2 * now[name] / then - 1:+.1e}"
        for name, then in latencies(before).items()
        if abs(2 * now[name] / then - 1) > allowed
    ]


def slower(before: Document, after: Document) -> dict[str, float]:
    """Return the latencies that better hardware lengthened by more than `LISTED`, as shares."""
    now = latencies(after)
    found = {name: now[name] / then - 1 for name, then in latencies(before).items()}
    return {name: share for name, share in found.items() if share > LISTED}


# ----------------------------------------------------------------------------- all of them


class Checked(NamedTuple):
    """The lines that a check prints, and how many laws were broken."""

    lines: list[str]
    broken: int


def check_all(traces: dict[str, Path], scratch: Path) -> int:
    """Check every law on every system, print what breaks one, and return how many do."""
    broken = 0
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        waiting = [
            pool.submit(check, setting, trace, scratch)
            for check, settings in ((machines, CHANGED), (conservation, SETTINGS))
            for setting, trace in traces.items() if setting in settings
        ]  # fmt: skip
        for one in waiting:
            found = one.result()
            print(*found.lines, sep="\n", flush=True)
            broken += found.broken
    return broken


def _run(setting: str, trace: Path, scratch: Path, *options: str) -> Document:
    store = scratch / f"store-{getpid()}"  # other processes run at the same time
    return moebench(
        "--setting", setting, "--trace", str(trace), "--prompts", "2", "--new-tokens", "16",
        "--store", str(store), *options,
    )  # fmt: skip


def conservation(setting: str, trace: Path, scratch: Path) -> Checked:
    """Check the laws of conservation on documents of every system."""
    machine = CATALOGUE / "machines" / f"{SETTINGS[setting].machine}.yaml"
    lines: list[str] = []
    checked = broken = 0
    for software, batch in (("hf-eager", "1"), ("lean", "2")):
        of = numbers(machine, CATALOGUE / "software" / f"{software}.yaml")
        for system, options in systems():
            how = ("--software", software, "--batch", batch, *options)
            document = _run(setting, trace, scratch, *how)
            if "error" not in document:
                checked += 1
                found = conserved(document, of)
                lines += [f"{setting} {software} {system}: not so: {law}" for law in found]
                broken += len(found)
    said = f"{setting}: conservation laws of {checked} documents: {broken} broken"
    return Checked([*lines, said], broken)


def machines(setting: str, trace: Path, scratch: Path) -> Checked:
    """Check on every system that twice the speed halves its times, and that more is no slower."""
    machine, lines = SETTINGS[setting].machine, list[str]()
    same = changed(machine, {}, scratch / f"{setting}.yaml")
    twice = changed(machine, twice_as_fast(machine), scratch / f"{setting}-twice.yaml")
    better = {
        name: changed(machine, factors, scratch / f"{setting}-{at}.yaml")
        for at, (name, factors) in enumerate(FASTER.items())
        if SETTINGS[setting].host_bytes or not name.startswith("disk")
    }
    tried = anomalies = broken = 0
    for system, options in systems():
        held = [] if system == "gpu-only" else ["--slots", str(CHANGED[setting])]

        def on(profile: Path, how: tuple[str, ...] = (*options, *held)) -> Document:
            return _run(setting, trace, scratch, "--machine", str(profile), *how)

        before = on(same)
        if "error" in before:
            continue
        bad = not_halved(system, before, on(twice))
        lines += [f"{setting} {system}: not halved: {one}" for one in bad]
        broken += len(bad)
        for name, profile in better.items():
            found = slower(before, on(profile))
            tried += 1
            anomalies += bool(found)
            why, most = EXPLAINED.get(system, ("", MOST))
            broken += sum(share > most for share in found.values())
            because = f" ({why})" if why else ""
            lines += [f"{setting} {system}: {name}: {one} {share:+.2%}{because}"
                      for one, share in found.items()]  # fmt: skip
    lines.append(f"{setting}: {tried} faster machines, {anomalies} anomalies, {broken} laws broken")
    return Checked(lines, broken)
