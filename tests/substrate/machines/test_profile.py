"""Hardware profiles: the catalogue's numbers, unit conversions, and what every bad file is told."""

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from moebench.harness.published.constants import COMPONENTS
from moebench.substrate.errors import ProfileError, UnknownNameError, UsageError
from moebench.substrate.machines.profile import (
    MACHINES,
    SOFTWARE,
    SPECIAL,
    Bandwidth,
    Compute,
    Count,
    Efficiency,
    HardwareProfile,
    Memory,
    Power,
    Quantity,
    Ratio,
    Time,
    load_profile,
    load_software,
    machine_name,
    profile_names,
    software_names,
    with_numbers,
)
from moebench.substrate.machines.profile_ranges import moved

CATALOGUE = [
    "a100", "a100@daop", "a5000", "a5000@duoserve", "a6000", "a6000@daop", "a6000@duoserve",
    "a6000@smoe-8core", "h100", "h200", "l4@moe-lightning", "rtx3080ti", "rtx4060ti", "rtx4090",
    "rtx5070ti", "t4@moe-lightning",
]  # fmt: skip

# name: device GiB, device GB/s, bf16 TFLOPS with fp32 accumulation, W, H2D GB/s, host GEMV GB/s
EXPECTED = {
    "rtx3080ti": (12, 912, 68, 350, 25.5, 40),
    "rtx4060ti": (16, 288, 44, 165, 12.5, 40),
    "a6000": (48, 768, 154.8, 300, 26, 27),
    "a6000@daop": (48, 768, 154.8, 300, 5.24, 43),
    "a6000@duoserve": (48, 768, 154.8, 300, 25.5, 95),
    "a6000@smoe-8core": (48, 768, 154.8, 300, 26, 43.9),
    "a5000": (24, 768, 111.1, 230, 25.5, 85),
    "a5000@duoserve": (24, 768, 111.1, 230, 25.5, 85),
    "rtx5070ti": (16, 896, 87.9, 300, 53, 57),
    "rtx4090": (24, 1008, 165, 450, 25.5, 57),
    "a100@daop": (80, 2039, 312, 400, 8.84, 67),
    "a100": (80, 2039, 312, 400, 25.5, 264),
    "h100": (80, 3350, 989, 700, 53, 264),
    "h200": (139, 4800, 989, 700, 53, 264),
    "t4@moe-lightning": (15, 322.1225, 65, 70, 17.1799, 107.3742),
    "l4@moe-lightning": (24, 306.0164, 104, 72, 17.1799, 107.3742),
}


def quantities(node: object, path: str = "") -> list[tuple[str, Quantity]]:
    """Every number of a profile with its dotted path."""
    if isinstance(node, Quantity):
        return [(path, node)]
    if not hasattr(type(node), "model_fields"):
        return []
    fields = type(node).model_fields  # type: ignore[attr-defined]
    return [q for f in fields for q in quantities(getattr(node, f), f"{path}.{f}".lstrip("."))]


@pytest.fixture
def good() -> dict[str, Any]:
    """A fresh, valid profile as YAML gives it; tests break one thing in it."""
    return copy.deepcopy(yaml.safe_load((MACHINES / "a6000.yaml").read_text()))


def complaint(data: object, tmp_path: Path) -> str:
    """What loading the data from a file says, after checking that it is one line with the path."""
    path = tmp_path / "box.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ProfileError) as caught:
        load_profile(str(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


# ------------------------------------------------------------------------- the catalogue


def test_the_catalogue_holds_every_machine_of_the_settings() -> None:
    assert profile_names() == CATALOGUE
    assert set(EXPECTED) == set(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_profile_loads_under_its_own_name(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.badge == "estimate"
    assert (MACHINES / f"{name}.yaml").read_text().startswith("# ")


@pytest.mark.parametrize("name", CATALOGUE)
def test_headline_numbers(name: str) -> None:
    gib, gb_s, tflops, watts, h2d, gemv = EXPECTED[name]
    profile = load_profile(name)
    assert profile.gpu.memory.bytes == gib * 1024**3
    assert profile.gpu.bandwidth.bytes_per_s == pytest.approx(gb_s * 1e9)
    assert profile.gpu.tensor_bf16.flops_per_s == pytest.approx(tflops * 1e12)
    assert profile.gpu.full_power.watts == watts
    assert profile.link.h2d().bytes_per_s == pytest.approx(h2d * 1e9)
    assert profile.host.gemv_bandwidth.bytes_per_s == pytest.approx(gemv * 1e9)


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_number_is_calibrated_in_an_uncalibrated_profile(name: str) -> None:
    numbers = quantities(load_profile(name))
    assert len(numbers) == 9 + 5 + 8 + 3 + 17  # gpu, link, host, disk, software
    assert [path for path, number in numbers if number.badge == "calibrated"] == []


@pytest.mark.parametrize("name", CATALOGUE)
def test_practice_never_beats_the_link_in_theory(name: str) -> None:
    lanes = {"PCIe 3.0 x16": 15.75, "PCIe 4.0 x8": 15.75, "PCIe 4.0 x16": 31.5, "PCIe 5.0 x16": 63}
    # The constant of a roofline model, which its authors use for both of their links.
    lanes["PCIe 3.0 x16, stated as 16 GiB/s"] = 17.19
    link = load_profile(name).link
    assert link.pageable_h2d.bytes_per_s < link.pinned_h2d.bytes_per_s
    assert max(link.pinned_h2d.bytes_per_s, link.pinned_d2h.bytes_per_s) < lanes[link.name] * 1e9


def test_variants_differ_from_their_machine_only_around_the_gpu() -> None:
    for variant in (n for n in CATALOGUE if "@" in n and n.split("@")[0] in CATALOGUE):
        assert load_profile(variant).gpu == load_profile(variant.split("@")[0]).gpu
    daop = load_profile("a6000@daop")
    assert (daop.link.name, daop.link.pinned, daop.host.cores.count) == ("PCIe 3.0 x16", False, 18)
    assert daop.link.pinned_h2d.bytes_per_s == pytest.approx(12e9)
    assert load_profile("a6000@duoserve").host.cores.count == 16
    smoe = load_profile("a6000@smoe-8core")
    assert (smoe.link, smoe.disk) == (load_profile("a6000").link, load_profile("a6000").disk)
    assert smoe.host.cores.count == 8
    assert not smoe.host.gemv_holds_dispatch  # its rate is of reads, not of an expert's time
    assert load_profile("a5000@duoserve").host.cores.count == 12


def test_boxes_of_the_papers() -> None:
    assert load_profile("rtx3080ti").host.cores.count == 6
    assert load_profile("rtx5070ti").disk.max_bandwidth.bytes_per_s == pytest.approx(7.4e9)
    assert load_profile("rtx5070ti").disk.queue1_bandwidth.bytes_per_s == pytest.approx(4.5e9)
    assert load_profile("a6000").disk.max_bandwidth.bytes_per_s == pytest.approx(7.32e9)
    assert load_profile("a6000").host.memory.bytes > 100 * 10**9
    h200 = load_profile("h200").gpu
    reached = h200.tensor_bf16.flops_per_s * h200.tensor_efficiency.ratio
    assert reached == pytest.approx(790e12, rel=0.01)
    assert h200.tensor_efficiency.badge == "measured"


# ------------------------------------------------------------------------- software


def test_software_costs() -> None:
    software = load_profile("rtx4090").software
    costs = (software.launch, software.sync, software.decision, software.copy_submit)
    assert [cost.ns for cost in costs] == [8_000, 20_000, 50_000, 6_000]
    assert software.launches_expert.count == 5
    assert "11" in software.launches_expert.source
    assert (software.layer.ns, software.expert.ns, software.waits_each_layer) == (0, 0, False)


def test_the_kinds_of_software() -> None:
    assert software_names() == [
        "ggml", "hf-eager", "ik", "kt", "lean", "python-graphs", "vllm",
    ]  # fmt: skip
    for kind in software_names():
        assert load_software(kind).name == kind
        assert load_profile("a6000", kind).software == load_software(kind)
    assert load_profile("a6000").software.name == "lean"


def test_kernels_of_the_host_by_kind_of_software() -> None:
    kinds = {kind: load_software(kind) for kind in software_names()}
    rows = {kind: s.host_rows_gain.ratio for kind, s in kinds.items() if s.host_rows_gain}
    gains = {kind: s.host_kernel_gain.ratio for kind, s in kinds.items() if s.host_kernel_gain}
    assert (rows, gains) == ({"ggml": 0.7, "ik": 2.7, "kt": 3.6}, {"ik": 1.3})
    # The constants with which published rows are predicted start from the same numbers.
    engines = {"ggml": "llama.cpp", "ik": "ik_llama.cpp", "kt": "ktransformers"}
    assert rows == {kind: COMPONENTS[f"rows {name}"] for kind, name in engines.items()}
    for kind in rows:
        assert load_software(kind).attention_reads.ratio == COMPONENTS["attention reads"]


def test_hf_eager_takes_a_millisecond_a_layer_and_130_us_an_expert() -> None:
    s = load_profile("a6000", "hf-eager").software
    assert (s.layer.ns, s.expert.ns) == (1_000_000, 130_000)
    assert s.waits_each_layer


def test_a_profile_may_state_what_a_kind_costs_on_its_box(good: dict[str, Any]) -> None:
    lean = yaml.safe_load((SOFTWARE / "lean.yaml").read_text())
    lean["launch"]["value"] = 9
    good["software"] = {"lean": lean}
    assert HardwareProfile.from_mapping(good).software.launch.ns == 9_000
    eager = HardwareProfile.from_mapping(good, software="hf-eager")
    assert eager.software == load_software("hf-eager")
    assert eager.content_hash() == load_profile("a6000", "hf-eager").content_hash()


@pytest.mark.parametrize("own", [3, ["lean"], {"launch": {"value": 8}}, {"triton": {}}])
def test_software_is_stated_by_kind(good: dict[str, Any], tmp_path: Path, own: object) -> None:
    good["software"] = own
    message = complaint(good, tmp_path)
    assert message.startswith("software: expected costs by kind of software; allowed kinds: ")
    assert message.endswith("ggml, hf-eager, ik, kt, lean, python-graphs, vllm")


def test_a_kind_needs_all_its_costs(good: dict[str, Any], tmp_path: Path) -> None:
    good["software"] = {"lean": {"name": "lean"}}
    assert complaint(good, tmp_path).startswith("software.description: missing; allowed: fields ")


def test_an_unknown_kind_of_software() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown software 'eager'.*hf-eager"):
        load_profile("a6000", "eager")
    with pytest.raises(UnknownNameError, match=r"unknown software 'eager'.*hf-eager"):
        load_software("eager")


def test_a_damaged_kind_of_the_catalogue_is_named_with_its_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moebench.substrate.machines.profile.SOFTWARE", tmp_path)
    lean = yaml.safe_load((SOFTWARE / "lean.yaml").read_text())
    lean["launch"]["value"] = "soon"
    (tmp_path / "lean.yaml").write_text(yaml.safe_dump(lean))
    with pytest.raises(ProfileError, match=r"lean\.yaml: launch.*soon"):
        load_software("lean")


# ------------------------------------------------------------------------- units


@pytest.mark.parametrize(
    ("kind", "value", "unit", "attribute", "expected"),
    [
        (Bandwidth, 768, "GB/s", "bytes_per_s", 768_000_000_000.0),
        (Bandwidth, 550, "MB/s", "bytes_per_s", 550_000_000.0),
        (Compute, 154.8, "TFLOPS", "flops_per_s", 1.548e14),
        (Compute, 750, "GFLOPS", "flops_per_s", 7.5e11),
        (Memory, 2, "GB", "bytes", 2_000_000_000),
        (Memory, 2, "GiB", "bytes", 2_147_483_648),
        (Memory, 1.1, "GB", "bytes", 1_100_000_000),
        (Time, 2.5, "us", "ns", 2_500),
        (Time, 3, "ms", "ns", 3_000_000),
        (Time, 7, "ns", "ns", 7),
        (Time, 0, "us", "ns", 0),
        (Power, 0, "W", "watts", 0.0),
        (Power, 22.5, "W", "watts", 22.5),
        (Ratio, 1.7, "1", "ratio", 1.7),
        (Efficiency, 1, "1", "ratio", 1.0),
        (Count, 14, "1", "count", 14),
    ],
)
def test_units_convert_to_their_base(
    kind: type[Quantity], value: float, unit: str, attribute: str, expected: float
) -> None:
    number = kind(value=value, unit=unit, source="hand", badge="estimate")
    converted = getattr(number, attribute)
    assert converted == pytest.approx(expected)
    assert type(converted) is type(expected)


@pytest.mark.parametrize("kind", [Bandwidth, Compute, Memory, Ratio, Efficiency, Count])
def test_zero_is_only_for_time_and_power(kind: type[Quantity]) -> None:
    with pytest.raises(ValidationError, match="out of range"):
        kind(value=0, unit=next(iter(kind.UNITS)), source="hand", badge="estimate")


# ------------------------------------------------------------------------- ranges


def test_a_range_is_read_in_the_unit_of_its_number() -> None:
    small = load_profile("a6000").gpu.small_read_efficiency
    assert (small.low.ratio, small.ratio, small.high.ratio) == (0.5, 0.65, 0.85)
    submit = load_profile("a6000").software.copy_submit
    assert (submit.range, submit.low.ns, submit.high.ns) == ((5, 7), 5_000, 7_000)
    assert submit.low == submit.model_copy(update={"value": 5})


def test_a_number_without_a_range_is_its_own_lowest_and_highest() -> None:
    cores = load_profile("a6000").host.cores
    assert cores.range is None
    assert cores.low == cores == cores.high


@pytest.mark.parametrize(
    ("path", "given", "says"),
    [
        ("gpu.bandwidth", [700, 750], "value 768 is outside its range 700 to 750"),
        ("gpu.bandwidth", [769, 900], "value 768 is outside its range 769 to 900"),
        ("gpu.bandwidth", [900, 700], "value 768 is outside its range 900 to 700"),
        ("gpu.bandwidth", [0, 900], "value 0 is out of range"),
        ("link.in_engine_efficiency", [0.5, 1.5], "value 1.5 is out of range"),
        ("host.cores", [11.5, 12], "value 11.5 is not whole"),
        ("gpu.bandwidth", [700], "missing"),
        ("gpu.bandwidth", ["700", 900], "should be a valid number"),
        ("gpu.bandwidth", 700, "should be a valid tuple"),
    ],
)
def test_impossible_ranges(
    good: dict[str, Any], tmp_path: Path, path: str, given: object, says: str
) -> None:
    section, field = path.split(".")
    good[section][field]["range"] = given
    problem, allowed = complaint(good, tmp_path).split("; allowed: ")
    assert problem.startswith(path)
    assert says in problem
    assert "range: [lowest, highest]" in allowed


def test_a_range_changes_the_hash(good: dict[str, Any]) -> None:
    good["gpu"]["bandwidth"]["range"] = [700, 800]
    assert HardwareProfile.from_mapping(good).content_hash() != load_profile("a6000").content_hash()


# ------------------------------------------------------------------------- badge and hash


def test_the_badge_follows_from_the_numbers_and_cannot_be_written(good: dict[str, Any]) -> None:
    error = {"value": 0.07, "unit": "1", "source": "held-out copies", "badge": "measured"}
    good["calibration"] = {"date": "2026-01-31", "error": error, "machine": "my desk"}
    profile = HardwareProfile.from_mapping(good)
    assert profile.badge == "estimate", "its numbers are what they were"
    assert profile.calibration is not None
    assert profile.calibration.error.ratio == 0.07
    assert profile.content_hash() != load_profile("a6000").content_hash()

    def badges(found: Any, badge: str) -> None:
        """Say of every number that it has this badge."""
        if isinstance(found, dict):
            if "badge" in found:
                found["badge"] = badge
            for inner in found.values():
                badges(inner, badge)

    good["software"] = {"lean": load_software("lean").model_dump(mode="json")}
    for badge, whole in (
        ("measured", "datasheet"), ("datasheet", "datasheet"), ("calibrated", "calibrated"),
        ("estimate", "estimate"),
    ):  # fmt: skip
        badges(good, badge)
        assert HardwareProfile.from_mapping(good).badge == whole
    badges(good, "datasheet")
    good["disk"]["access_latency"]["badge"] = "estimate"
    assert HardwareProfile.from_mapping(good).badge == "estimate"
    with pytest.raises(ProfileError, match="badge: unknown field"):
        HardwareProfile.from_mapping(good | {"badge": "measured"})


def test_hash_depends_on_content_not_on_order(good: dict[str, Any], tmp_path: Path) -> None:
    first = load_profile("a6000").content_hash()
    assert re.fullmatch("[0-9a-f]{16}", first)
    path = tmp_path / "copy.yaml"
    path.write_text(yaml.safe_dump(dict(reversed(good.items()))))
    assert load_profile(str(path)).content_hash() == first
    good["gpu"]["bandwidth"]["value"] = 769
    assert HardwareProfile.from_mapping(good).content_hash() != first


def test_numbers_that_software_of_its_own_leaves_to_the_catalogue_are_not_in_the_hash(
    good: dict[str, Any],
) -> None:
    own = yaml.safe_load((SOFTWARE / "lean.yaml").read_text())
    stated = HardwareProfile.from_mapping({**good, "software": {"lean": own}})
    left = {name: number for name, number in own.items() if name not in SPECIAL}
    found = HardwareProfile.from_mapping({**good, "software": {"lean": left}})
    assert found.software == stated.software
    assert found.content_hash() != stated.content_hash()
    own["host_unpacking"]["value"] = 2
    other = HardwareProfile.from_mapping({**good, "software": {"lean": own}})
    assert other.content_hash() != stated.content_hash()
    assert moved(found, "gpu.bandwidth", 500).content_hash() != found.content_hash()
    left.pop("launch")
    with pytest.raises(ProfileError, match=r"software\.launch: missing"):
        HardwareProfile.from_mapping({**good, "software": {"lean": left}})


def test_profiles_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_profile("a6000").gpu.bandwidth.value = 1.0


# ------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("path", "change", "says", "allows"),
    [
        ("gpu.bandwidth", {"value": -768}, "value -768 is out of range", "> 0"),
        ("gpu.bandwidth", {"value": 0}, "value 0 is out of range", "> 0"),
        ("gpu.bandwidth", {"unit": "W"}, "'W' is not a unit of bandwidth", '"GB/s" or "MB/s"'),
        ("gpu.bandwidth", {"unit": "GB"}, "'GB' is not a unit of bandwidth", '"GB/s" or "MB/s"'),
        ("gpu.memory", {"unit": "GB/s"}, "'GB/s' is not a unit of memory", '"GB" or "GiB"'),
        ("host.peak_fp32", {"unit": "GB/s"}, "not a unit of compute", '"TFLOPS" or "GFLOPS"'),
        ("link.copy_fixed", {"unit": "W"}, "not a unit of time", '"ns" or "us" or "ms"'),
        ("host.handoff", {"value": -1}, "value -1 is out of range", ">= 0"),
        ("gpu.idle_power", {"value": -5}, "value -5 is out of range", ">= 0"),
        ("link.in_engine_efficiency", {"value": 1.2}, "1.2 is out of range", "<= 1,"),
        ("host.cores", {"value": 6.5}, "value 6.5 is not whole", "whole number"),
    ],
)
def test_impossible_numbers(
    good: dict[str, Any], tmp_path: Path, path: str, change: dict[str, Any], says: str, allows: str
) -> None:
    section, field = path.split(".")
    good[section][field].update(change)
    message = complaint(good, tmp_path)
    problem, allowed = message.split("; allowed: ")
    assert problem.startswith(f"{path}: ")
    assert says in problem
    assert allows in allowed


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("value", float("nan")),
        ("value", float("inf")),
        ("value", "768"),
        ("value", True),
        ("value", None),
        ("badge", "guess"),
        ("source", "  "),
        ("unit", 1),
    ],
)
def test_malformed_parts_of_a_number(
    good: dict[str, Any], tmp_path: Path, key: str, value: object
) -> None:
    good["disk"]["max_bandwidth"][key] = value
    message = complaint(good, tmp_path)
    assert message.startswith(f"disk.max_bandwidth.{key}: ")
    assert "; allowed: {value: number > 0" in message
    assert "measured or calibrated or datasheet or estimate" in message


@pytest.mark.parametrize("key", ["value", "unit", "source", "badge"])
def test_a_number_needs_all_its_parts(good: dict[str, Any], tmp_path: Path, key: str) -> None:
    del good["link"]["pinned_h2d"][key]
    message = complaint(good, tmp_path)
    assert message.startswith(f"link.pinned_h2d.{key}: missing; allowed: ")
    assert '"GB/s" or "MB/s"' in message


def test_a_bare_number_is_refused(good: dict[str, Any], tmp_path: Path) -> None:
    good["gpu"]["bandwidth"] = 768
    message = complaint(good, tmp_path)
    assert message.startswith("gpu.bandwidth: expected a mapping, got 768; allowed: {value: ")


@pytest.mark.parametrize("section", ["gpu", "link", "host", "disk"])
def test_a_missing_section(good: dict[str, Any], tmp_path: Path, section: str) -> None:
    fields = [*good.pop(section), *(["core_rate", "shared_bandwidth"] if section == "host" else [])]
    message = complaint(good, tmp_path)
    assert message.startswith(f"{section}: missing; allowed: fields ")
    offered = message.split("allowed: fields ")[1].split(", ")
    assert sorted(offered) == sorted(fields)


def test_an_unknown_field_lists_the_known_ones(good: dict[str, Any], tmp_path: Path) -> None:
    good["disk"]["bandwith"] = good["disk"]["max_bandwidth"]
    message = complaint(good, tmp_path)
    assert message == (
        "disk.bandwith: unknown field; "
        "allowed: fields name, queue1_bandwidth, max_bandwidth, access_latency"
    )


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        ("gpu.idle_power", 300, "gpu.idle_power < gpu.full_power"),
        ("host.full_power", 50, "host.idle_power < host.full_power"),
        ("gpu.reserved_memory", 52, "gpu.reserved_memory < gpu.memory"),
        ("disk.max_bandwidth", 4.5, "disk.queue1_bandwidth <= disk.max_bandwidth"),
    ],
)
def test_numbers_that_contradict_each_other(
    good: dict[str, Any], tmp_path: Path, path: str, value: float, rule: str
) -> None:
    section, field = path.split(".")
    good[section][field]["value"] = value
    assert complaint(good, tmp_path).endswith(f"; allowed: {rule}")


@pytest.mark.parametrize("data", [None, 3, ["gpu"]])
def test_a_file_that_is_no_mapping(data: object, tmp_path: Path) -> None:
    message = complaint(data, tmp_path)
    assert message.startswith("top level: expected a mapping, got ")
    assert "allowed: fields name, description, gpu, link, host, disk, software" in message


@pytest.mark.parametrize("text", [b"gpu: {value: 1", b"a: b: c", b"name: \xff\xfe"])
def test_broken_yaml(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "broken.yaml"
    path.write_bytes(text)
    with pytest.raises(ProfileError, match=r"broken\.yaml: not .*allowed: ") as caught:
        load_profile(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"nowhere\.yaml: cannot be read .*allowed: ") as caught:
        load_profile(str(tmp_path / "nowhere.yaml"))
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [("a600", "a6000"), ("rtx4900", "rtx4090"), ("a6000@dap", "a6000@daop"), ("locl", "local")],
)
def test_an_unknown_machine_lists_the_nearest(typed: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown machine '{typed}'; nearest: ") as caught:
        load_profile(typed)
    assert nearest in str(caught.value).split("nearest: ")[1].split(", ")


def test_local_says_how_to_get_a_profile() -> None:
    with pytest.raises(UsageError, match="measured and has no profile"):
        load_profile("local")


def test_a_name_cannot_leave_the_catalogue() -> None:
    with pytest.raises(UnknownNameError):
        load_profile("../machines/a6000")


def test_listing_machines_imports_neither_torch_nor_yaml() -> None:
    code = (
        "import sys; from moebench.substrate.machines.profile import profile_names\n"
        "assert profile_names()\n"
        "print([m for m in ('torch', 'yaml') if m in sys.modules])"
    )
    root = MACHINES.parents[3]
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_profile_counts_its_estimates() -> None:
    files = (MACHINES / "a6000.yaml", SOFTWARE / "lean.yaml")
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    profile = load_profile("a6000")
    assert profile.estimates == text.count("badge: estimate")
    assert profile.numbers == text.count("badge: ")
    assert 0 < profile.estimates < profile.numbers


# ------------------------------------------------------------------------- other numbers


def test_a_name_may_be_followed_by_other_numbers() -> None:
    own, changed = load_profile("a6000"), load_profile("a6000+host.gemv_bandwidth=26.5")
    assert changed.host.gemv_bandwidth.value == 26.5
    assert changed.host.gemv_bandwidth.badge == "estimate"
    assert changed.host.gemv_bandwidth.unit == own.host.gemv_bandwidth.unit
    assert changed.link == own.link
    assert changed.content_hash() != own.content_hash()


def test_two_numbers_and_one_of_the_software() -> None:
    name = "a6000+host.gemv_bandwidth=26.5+software.launch=7"
    changed = load_profile(name, "lean")
    assert changed.software.launch.value == 7
    assert changed.host.gemv_bandwidth.value == 26.5
    assert machine_name(name) == name


@pytest.mark.parametrize("name", SPECIAL)
def test_a_number_that_a_profile_does_not_state_changes_its_hash(name: str) -> None:
    known = dict(load_profile("a6000").quantities())[f"software.{name}"]
    changed = load_profile(f"a6000+software.{name}={known.value * 0.5}")
    assert changed.content_hash() != load_profile("a6000").content_hash()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a6000+host.gemv=3", "no number host.gemv; allowed: "),
        ("a6000+host.gemv_bandwidth=-1", "allowed: number > 0"),
        ("a6000+host.gemv_bandwidth=fast", "host.gemv_bandwidth=fast: allowed: a number"),
        ("a6000+software.launch=1e99", "allowed: "),
        ("a6000+host.gemv_bandwidth=nan", "allowed: number > 0"),
        ("a6000+host.gemv_bandwidth=", "host.gemv_bandwidth=: allowed: a number"),
        ("a6000+host.gemv_bandwidth=26+slow", "+slow: allowed after a number"),
        ("a6000+host.gemv_bandwidth=26+ram=96", "+ram=96: allowed after a number"),
        ("a6000+host.gemv_bandwidth=26+host.gemv_bandwidth=9", "each field once"),
    ],
)
def test_other_numbers_are_refused_in_one_line(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as error:
        load_profile(name)
    assert "\n" not in str(error.value)


def test_numbers_that_are_given_with_a_machines_name_keep_their_unit() -> None:
    profile = load_profile("a6000", "hf-eager")
    found = with_numbers(profile, {"host.gemv_bandwidth": 50.0, "gpu.large_read_efficiency": 0.5})
    known = dict(found.quantities())
    bandwidth, share = known["host.gemv_bandwidth"], known["gpu.large_read_efficiency"]
    old = dict(profile.quantities())
    for number, field, value in (
        (bandwidth, "host.gemv_bandwidth", 50.0), (share, "gpu.large_read_efficiency", 0.5),
    ):  # fmt: skip
        assert (number.value, number.unit, number.badge) == (value, old[field].unit, "estimate")
        assert number.source == "given with the machine's name"
        assert number.range is None
        assert type(number) is type(old[field])
    changed = {field for field, number in known.items() if number != old[field]}
    assert changed == {"host.gemv_bandwidth", "gpu.large_read_efficiency"}
    assert with_numbers(profile, {}) == profile


def test_a_number_that_no_machine_has_or_cannot_have_is_refused_with_what_can_be() -> None:
    profile = load_profile("a6000")
    with pytest.raises(UsageError, match=r"^machine a6000: no number host\.gemv; allowed: host\."):
        with_numbers(profile, {"host.gemv": 50.0})
    with pytest.raises(UsageError, match=r"no number 123; allowed: disk\..*software\."):
        with_numbers(profile, {"123": 1.0})
    unit = dict(profile.quantities())["host.gemv_bandwidth"].unit
    with pytest.raises(UsageError) as caught:
        with_numbers(profile, {"host.gemv_bandwidth": -1.0})
    limits = Bandwidth.limits(unit)
    assert str(caught.value) == f"machine a6000: host.gemv_bandwidth=-1 {unit}: allowed: {limits}"
