"""Fuzzing of hardware profiles given as files."""

import copy
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from moebench.substrate.machines.profile import MACHINES
from tests.fuzz_inputs.door import Case, Door, finite, weighted
from tests.harness.commands import SMALL

RUN = (
    "run", "--system", "moe-ondemand", *SMALL, "--model", "qwen2-57b-a14b", "--capacity", "0.25",
    "--no-interval", "--json",
)  # fmt: skip
SHOW = ("machines", "components", "--json")


@cache
def _shipped() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((MACHINES / "a6000.yaml").read_text())
    return found


def profile() -> dict[str, Any]:
    return copy.deepcopy(_shipped())


def fields() -> list[tuple[str, ...]]:
    """Return the path of every number in the profile."""
    return [
        (part, name)
        for part, held in _shipped().items()
        if isinstance(held, dict) and part != "software"
        for name, number in held.items()
        if isinstance(number, dict) and "value" in number
    ]


def dumped(value: Any) -> str:
    return yaml.dump(value, Dumper=yaml.SafeDumper, sort_keys=False)


def asking(
    text: str | bytes, names: tuple[str, ...], good: bool | None, about: str,
    file: str = "box.yaml", typed: str = "box.yaml",
) -> Case:  # fmt: skip
    def prepare(folder: Path) -> None:
        (folder / file).write_bytes(text if isinstance(text, bytes) else text.encode())

    arguments = (*RUN, "--machine", typed)
    return Case(arguments, prepare, names, good, lambda called: finite(called.json), about)


ABSURD = st.one_of(
    st.sampled_from([0, -1, 1e300, 1e-300, 5e-324, 10**400, 2**70, -0.0, True, "12", "fast", None,
                     [], {}, [1], float("nan"), float("inf")]),
    st.floats(max_value=0), st.text(max_size=4),
)  # fmt: skip


@st.composite
def numbers(draw: st.DrawFn) -> Case:
    """Generate profiles with an invalid number or unit; 0 is invalid except for times and power."""
    changed, where = profile(), draw(st.sampled_from(fields()))
    part = changed[where[0]][where[1]]
    field = draw(st.sampled_from(["value", "value", "unit", "badge", "source", "range"]))
    value = draw(ABSURD)
    part[field] = value
    good: bool | None = False
    if field == "source" and isinstance(value, str) and value.strip():
        good = None
    if field == "range" and value is None:
        good = True
    zero = isinstance(value, int | float) and not isinstance(value, bool) and value == 0
    if field == "value" and zero and part["unit"] in ("ns", "us", "ms", "W"):
        part.pop("range", None)
        good = None
    return asking(dumped(changed), ("box.yaml", where[0]), good, f"{where} {field}")


@st.composite
def possible(draw: st.DrawFn) -> Case:
    """Generate profiles with a number 1000 times larger or smaller; results must be finite."""
    changed, (part, name) = profile(), draw(st.sampled_from(fields()))
    number = changed[part][name]
    number.pop("range", None)
    number["value"] = float(number["value"]) * 10.0 ** draw(st.integers(-12, 12))
    return asking(dumped(changed), (), None, f"scaled {part}.{name}")


@st.composite
def structures(draw: st.DrawFn) -> Case:
    """Generate profiles with a missing, unknown, duplicate or wrong part or field."""
    changed = profile()
    kind = draw(st.sampled_from(["drop", "extra", "replace", "drop inner", "twice"]))
    parts = [name for name, held in changed.items() if isinstance(held, dict)]
    part = draw(st.sampled_from(parts))
    names: tuple[str, ...] = ("box.yaml", part)
    if kind == "drop":
        del changed[part]
        if part in ("software", "calibration", "measured"):
            return asking(dumped(changed), (), True, "without an optional part")
    elif kind == "extra":
        changed[part]["novel"] = {"value": 1}
        names = ("box.yaml", part)
    elif kind == "replace":
        changed[part] = draw(st.sampled_from([3, "x", [], True]))
    elif kind == "twice":
        return asking(dumped(changed) + f"\n{part}: {{}}\n", names, False, "twice")
    else:
        inner = draw(st.sampled_from(sorted(changed[part])))
        del changed[part][inner]
        optional = inner in ("idle_power", "full_power", "pinned") or part in ("software",)
        return asking(dumped(changed), names, None if optional else False, "drop inner")
    return asking(dumped(changed), names, False, kind)


@st.composite
def raw_texts(draw: st.DrawFn) -> Case:
    """Generate files that are not profiles."""
    text = draw(
        st.one_of(
            st.sampled_from(
                [b"", b"{", b"[]", b"3", b"\xff\xfe", b"a: [", b"[" * 3000, b"&a [*a]",
                 b"? [1]\n: 2",
                 b"!!python/object:os.system {}", b"a: 2001-99-99", b"\t- x", b"a: 1\na: 2",
                 b"x: !!binary ====", b"a: 0x", b"null", b"{1: 2}", b"a: *b", b"---\n---\n"]
            ),
            st.binary(max_size=30),
        )
    )  # fmt: skip
    return asking(text, ("box.yaml",), False, "raw")


@st.composite
def spellings(draw: st.DrawFn) -> Case:
    """Generate several spellings of the path to a valid profile."""
    file = draw(st.sampled_from(["box.yaml", "box.yml", "a b.yaml", "Größe.yml"]))
    typed = draw(st.sampled_from([file, f"./{file}", f".//{file}", f"../x/../{file}"]))
    good = not typed.startswith("..")
    return asking(dumped(profile()), (), good or None, "spelling", file, typed)


@st.composite
def places(draw: st.DrawFn) -> Case:
    """Generate paths at which there is no file."""
    typed = draw(
        st.one_of(
            st.sampled_from(["", " ", "nowhere.yaml", "nowhere.yml", "folder.yaml", "nowhere",
                             "a6000.yml", "x" * 300 + ".yaml", "a\0b.yaml"]),
            st.text(alphabet="abz/.-_", min_size=1, max_size=8),
        )
    )  # fmt: skip

    def prepare(folder: Path) -> None:
        (folder / "folder.yaml").mkdir()

    return Case((*RUN, f"--machine={typed}"), prepare, (), False, about="place")


DOOR = Door(
    "profiles",
    weighted(
        (6, numbers()), (4, possible()), (3, structures()), (3, raw_texts()), (1, spellings()),
        (1, places()),
    ),
)  # fmt: skip
