"""Fuzzing of sweep files and options that expand to many runs."""

import json
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from moebench.harness.sweep.plan import FIELDS
from tests.fuzz_inputs.door import Case, Door, finite, weighted
from tests.harness.commands import Called

DRY = ("sweep", "s.yaml", "--dry-run", "--json")
RIGHT: dict[str, Any] = {
    "common": {"new_tokens": 3, "workload": "arithmetic", "cache_ratio": 0.25},
    "product": {"system": ["moe-ondemand", "smoe"], "setting": ["S3"]},
    "zip": {"batch": [1, 2], "prompts": [2, 4]},
}


def planning(
    plan: Any, names: tuple[str, ...], good: bool | None, about: str, cells: int | None = None
) -> Case:
    def prepare(folder: Path) -> None:
        if isinstance(plan, bytes):
            (folder / "s.yaml").write_bytes(plan)
        else:
            (folder / "s.yaml").write_text(yaml.dump(plan, Dumper=yaml.SafeDumper, sort_keys=False))

    def right(called: Called) -> bool:
        document = json.loads(called.out)
        return finite(document) and cells in (None, len(document["cells"]))

    return Case(DRY, prepare, names, good, right, about)


WRONG: dict[str, st.SearchStrategy[Any]] = {
    "batch": st.sampled_from([True, 0, -1, 257, 1.5, "x", None, [[1]], 2**70, float("nan")]),
    "prompts": st.sampled_from([True, False, 0, -1, 1.5, "many", 2**70, float("inf")]),
    "new_tokens": st.sampled_from([True, 0, -3, 0.5, "x", 10**9, {}]),
    "alpha": st.sampled_from([float("nan"), float("inf"), -0.1, 1.1, True, "x"]),
    "cache_ratio": st.sampled_from([float("nan"), 0, 1.01, -1, True, "half", 1e300]),
    "seed": st.sampled_from([-1, True, 1.5, "x", 2**70]),
    "slots": st.sampled_from([0, -1, True, 2**70, "x"]),
    "free_host_gb": st.sampled_from([0, -1, float("nan"), True, 1e300]),
    "calibrate_from": st.sampled_from(["nope", "", 3, True]),
    "calibrate_texts": st.sampled_from([0, -1, True, 2**70]),
    "system": st.sampled_from(["smeo", "", 3, True, None, "nope:Nope", "a b"]),
    "setting": st.sampled_from(["S99", "", 3, True]),
    "machine": st.sampled_from(["a600", "", "nowhere.yaml", "nowhere.yml", 3, True]),
    "model": st.sampled_from(["qwen", "", "nowhere.json", 3, True]),
    "workload": st.sampled_from(["arith", "", 3, True]),
    "routing": st.sampled_from(["drawnn", "", True]),
    "trace": st.sampled_from(["nowhere", "{nofield}", "{", "{0}", 3, True]),
    "weights": st.sampled_from(["{nofield}", "{", "{model.x}", 3, True]),
    "precision": st.sampled_from(["int3", "", True, 4]),
    "few_shot": st.sampled_from(["x", -1, True, "9" * 5000, "٣x"]),
    "variant": st.sampled_from(["shiped", "", True]),
    "software": st.sampled_from(["leen", "", True]),
}


@st.composite
def values(draw: st.DrawFn) -> Case:
    """Generate plans with one invalid field, in all cells or on an axis."""
    field = draw(st.sampled_from(sorted(WRONG)))
    value = draw(WRONG[field])
    part = draw(st.sampled_from(["common", "product"]))
    if part == "common" and isinstance(value, list | dict):
        part = "product"
    plan = {name: dict(held) for name, held in RIGHT.items()}
    for held in plan.values():
        held.pop(field, None)
    if field in ("batch", "prompts"):
        plan["zip"] = {}
    if field == "cache_ratio" or field == "slots":
        plan["common"].pop("cache_ratio", None)
    plan[part][field] = value if part == "common" else [value]
    null = value is None and field in ("batch",)
    names = () if field in ("alpha", "trace", "weights") else ("s.yaml",)
    return planning(plan, names, None if null else False, f"{part} {field} {value!r:.20}")


@st.composite
def options(draw: st.DrawFn) -> Case:
    """Generate plans with an invalid option of a system."""
    key, value = draw(
        st.sampled_from(
            [("alpha", float("nan")), ("alpha", 2), ("evict", "lruu"), ("evikt", "lru"),
             ("route.refine", "perhaps"), ("assign.history", 0), ("evict.window", float("nan")),
             ("scope", "slice"), ("evict", None), ("evict", {}), ("evict", [1]), ("scope", 3),
             ("assign.history", 2**70), ("assign.history", True)]
        )
    )  # fmt: skip
    plan = RIGHT | {"product": {"system": [{"system": "smoe", "set": {key: value}}]}}
    plan["product"]["setting"] = ["S3"]
    good = None if key == "assign.history" and value is True else False
    return planning(plan, ("s.yaml", key.split(".")[-1]), good, f"set {key}={value!r:.20}")


@st.composite
def daop_first(draw: st.DrawFn) -> Case:
    """Generate plans that name layers which a model does not have."""
    first = draw(st.sampled_from([0, -1, 6, 999, 2**70]))
    plan = {
        "common": {"new_tokens": 3, "workload": "arithmetic", "prompts": 1, "cache_ratio": 0.25},
        "product": {"system": [{"system": "daop", "set": {"route.first": first}}]},
        "zip": {"setting": ["S3"]},
    }

    def prepare(folder: Path) -> None:
        (folder / "s.yaml").write_text(yaml.safe_dump(plan))

    if first > 0:  # the plan shows the invalid cell with its reason, and the code is 1
        return Case(
            ("run", "--system", "daop", "--setting", "S3", "--workload", "arithmetic", "--prompts",
             "1", "--new-tokens", "3", "--set", f"route.first={first}"),
            names=("route.first", str(first)), about="route.first",
        )  # fmt: skip
    return Case(DRY, prepare, ("s.yaml", "route.first", str(first)), about="route.first")


@st.composite
def axes(draw: st.DrawFn) -> Case:
    """Generate plans with contradictory or malformed axes."""
    kind = draw(
        st.sampled_from(["both", "two zips", "uneven", "unknown key", "unknown field",
                         "empty", "list", "text", "excluded", "number"])
    )  # fmt: skip
    plan: dict[Any, Any] = {name: dict(held) for name, held in RIGHT.items()}
    names: tuple[str, ...] = ("s.yaml",)
    if kind == "both":
        plan["product"]["batch"] = [1]
        names = ("s.yaml", "batch", "product", "zip")
    elif kind == "two zips":
        plan["zip"] = [{"batch": [1]}, {"batch": [2], "prompts": [2]}]
        names = ("s.yaml", "batch")
    elif kind == "uneven":
        plan["zip"]["prompts"] = [2]
    elif kind == "unknown key":
        plan[draw(st.sampled_from(["produkt", "", 3, None, True]))] = {}
    elif kind == "unknown field":
        field = draw(st.sampled_from(["bach", "", 3, None, "systems", "overrides"]))
        plan["product"][field] = [1]
    elif kind == "empty":
        plan["product"]["system"] = []
    elif kind in ("list", "text", "number"):
        part = draw(st.sampled_from(["common", "product", "zip", "exclude", "optional"]))
        plan[part] = {"list": [[1]], "text": "x", "number": 3}[kind]
    else:
        plan["exclude"] = [{"setting": "S3"}]
    return planning(plan, names, False, f"axes {kind}")


@st.composite
def raw_plans(draw: st.DrawFn) -> Case:
    """Generate files that are not plans."""
    text = draw(
        st.one_of(
            st.sampled_from(
                [b"", b"{", b"[]", b"3", b"\xff\xfe", b"a: [", b"[" * 3000, b"&a [*a]",
                 b"product: &a {system: [*a]}", b"? [1]\n: 2", b"!!python/object:os.system {}",
                 b"common: {batch: 1}\ncommon: {batch: 2}", b"product: {batch: 1, batch: 2}",
                 b"product: 2001-99-99", b"null", b"record: x"]
            ),
            st.binary(max_size=30),
        )
    )  # fmt: skip
    return planning(text, ("s.yaml",), False, "raw plan")


@st.composite
def flags(draw: st.DrawFn) -> Case:
    """Generate lists as typed on the command line."""
    option, value = draw(
        st.sampled_from(
            [("--batches", "1,,2"), ("--batches", "true"), ("--batches", "1;2"), ("--batches", ""),
             ("--alphas", "nan"), ("--capacities", "nan"), ("--seeds", "1.5"), ("--systems", ","),
             ("--prompts", "1e9"), ("--models", "nope"), ("--jobs", "-1"), ("--jobs", "x"),
             ("--store", ""), ("--set", "alpha=nan"), ("--set", "x"), ("--routings", "x"),
             ("--machines", "./nope.yml"), ("--workloads", "nope"), ("--data-dir", "nowhere")]
        )
    )  # fmt: skip
    systems = () if option == "--systems" else ("--systems", "smoe")
    arguments = ("sweep", *systems, "--settings", "S3", option, value, "--dry-run")
    return Case(arguments, names=(), about=f"{option} {value}")


@st.composite
def right_plans(draw: st.DrawFn) -> Case:
    """Generate valid plans with a known number of cells."""
    systems = draw(st.lists(st.sampled_from(["moe-ondemand", "smoe", "duoserve"]), min_size=1,
                            unique=True))  # fmt: skip
    batches = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True))
    plan = {
        "common": {"new_tokens": 3, "workload": "arithmetic", "cache_ratio": 0.25, "prompts": 12},
        "product": {"system": systems, "setting": ["S3"], "batch": batches},
    }
    return planning(plan, (), True, "right plan", len(systems) * len(batches))


assert WRONG.keys() <= FIELDS.keys()

DOOR = Door(
    "sweeps",
    weighted(
        (6, values()), (2, options()), (1, daop_first()), (3, axes()), (2, raw_plans()),
        (2, flags()), (1, right_plans()),
    ),
)  # fmt: skip
