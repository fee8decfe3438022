"""What a run's id depends on: its spec, the code, and its system with all that this imports."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from moebench.harness.run import identity
from moebench.harness.run.code_cache import CodeCache
from moebench.harness.run.identity import (
    _source,
    bits_hash,
    code_hash,
    find_module,
    imports_of,
    is_hashed,
    profile_hash,
    run_id,
    syntax_of,
    system_hash,
)
from moebench.harness.run.rules import resolve
from moebench.results.spec import RunSpec
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import quantised
from moebench.systems.options import build

ROOT = Path(__file__).parents[3]

# --------------------------------------------------------------------------- the spec

BASE = {"system": "smoe", "machine": "a6000", "model": "m", "workload": "arithmetic"}
OTHER_VALUES = {
    "system": "gpu-only", "variant": "shipped", "setting": "S3", "machine": "h100",
    "model": "olmoe-1b-7b", "weights": "elsewhere", "precision": "fp16", "workload": "gsm8k",
    "batch": 2, "prompts": 2, "new_tokens": 1, "context": 64, "cache_ratio": 0.5, "slots": 3,
    "allow_overcommit": True, "free_host_gb": 1.0,
    "emulated_link_gb_s": 4.0, "page_cache": "keep", "software": "hf-eager",
    "device_memory_gib": 3.0, "overrides": {"evict": "lru"}, "seed": 1, "scoring": "generation",
    "few_shot": 2, "routing": "drawn", "trace": "elsewhere", "calibrate_from": "gsm8k",
    "calibrate_texts": 5, "reconstruct_scores": True, "plain_prompts": True, "device": "cuda",
    "expert_dtype": "int4", "quant": "q4_k_m", "clairvoyant": True, "temperature": 0.7,
    "top_p": 0.9,
}  # fmt: skip


def test_every_field_is_part_of_the_identity() -> None:
    assert set(OTHER_VALUES) == set(RunSpec.model_fields)
    base = RunSpec(**BASE)
    ids = [run_id(RunSpec(**{**BASE, key: value})) for key, value in OTHER_VALUES.items()]
    assert len({run_id(base), *ids}) == 1 + len(OTHER_VALUES)


def test_equal_specs_have_equal_identities() -> None:
    one = RunSpec(**BASE, overrides={"evict": "lru", "assign": "load"})
    other = RunSpec(**dict(reversed(BASE.items())), overrides={"assign": "load", "evict": "lru"})
    assert run_id(one, data="x", weights="y") == run_id(other, weights="y", data="x")
    assert len(run_id(one)) == 12


def test_code_and_content_are_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RunSpec(**BASE)
    before = run_id(spec, data="x")
    assert run_id(spec, data="y") != before
    assert run_id(spec, weights="x") != before
    monkeypatch.setattr(identity, "code_hash", lambda: "0" * 16)
    assert run_id(spec, data="x") != before


# --------------------------------------------------------------------------- our own code

#: Prints, for each file of the command line, which hashes differ once a line was added to it.
SCRIPT = """
import json, sys
from pathlib import Path

from moebench.harness.run.identity import _ours, code_hash, system_hash
from moebench.systems.options import build

systems = {name: build(name) for name in ("smoe", "moe-ondemand", "daop")}

def hashes():
    code_hash.cache_clear()
    _ours.cache_clear()
    return {"code": code_hash()} | {name: system_hash(s) for name, s in systems.items()}

before, found = hashes(), {}
for name in sys.argv[1:]:
    file = Path(name)
    content = file.read_bytes() if file.exists() else None
    file.write_bytes((content or b"") + b"\\nADDED = 1\\n")
    after = hashes()
    found[name] = sorted(key for key in before if before[key] != after[key])
    file.unlink() if content is None else file.write_bytes(content)
assert hashes() == before
print(json.dumps([before, found]))
"""

EVERY_SYSTEM = ["daop", "moe-ondemand", "smoe"]
EDITS = {
    "substrate/engine/loop.py": ["code"],
    "substrate/models/layers.py": ["code"],
    "substrate/new.py": ["code"],
    "workloads/scoring.py": ["code"],
    "harness/run/document.py": ["code"],
    "systems/smoe.py": ["smoe"],
    "systems/daop.py": ["daop"],
    "systems/baselines.py": ["moe-ondemand"],
    "systems/policies/place.py": EVERY_SYSTEM,
    "systems/flashmoe.py": [],
    "systems/learn/expert_mlp.py": [],
    "harness/cli/app.py": [],
    "harness/sweep/worker.py": [],
    "reports/page/page.py": [],
    "results/store.py": [],
    "substrate/notes.txt": [],
}


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The hashes of a copy of the packages, and those that each edit changes."""
    tree = tmp_path_factory.mktemp("tree")
    links = [path.name for path in (ROOT / "moebench").iterdir() if path.is_symlink()]
    for name in links:
        data = shutil.ignore_patterns("__pycache__", "*.safetensors", "*.npy", "tokenizer.json")
        shutil.copytree(ROOT / name, tree / name, ignore=data)
    (tree / "moebench").mkdir()
    shutil.copy(ROOT / "moebench" / "__init__.py", tree / "moebench")
    for name in links:
        (tree / "moebench" / name).symlink_to(tree / name)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *EDITS], cwd=tree, env={"PYTHONPATH": str(tree)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, found = json.loads(done.stdout)
    return before, found


@pytest.mark.slow
@pytest.mark.parametrize("file", EDITS)
def test_an_edit_changes_the_hashes_of_what_it_can_change(
    edited: tuple[dict[str, str], dict[str, list[str]]], file: str
) -> None:
    assert edited[1][file] == EDITS[file]


def test_where_the_code_lies_changes_nothing(
    edited: tuple[dict[str, str], dict[str, list[str]]],
) -> None:
    here = {"code": code_hash()} | {name: system_hash(build(name)) for name in EVERY_SYSTEM}
    assert edited[0] == here


# --------------------------------------------------------------------------- a system of one's own

#: A system, and what it imports in every way that Python has.
FILES = {
    "mine.py": """
from dataclasses import dataclass, field

import json
import re
import loose.part
from beside.part import LIMIT
from helper import Evict

from moebench import Eviction
from moebench.systems.smoe import SMoE

try:
    from . import relative
except ImportError:
    relative = None


def later():
    import lazy
    import broken.part
    import unfinished
    from nowhere import nothing


@dataclass(kw_only=True)
class Mine(SMoE):
    evict: Eviction = field(default_factory=Evict)
""",
    "helper.py": """
import deeper
from moebench.systems.policies.evict import LeastRecentlyUsed


class Evict(LeastRecentlyUsed):
    pass
""",
    "deeper.py": "",
    "lazy.py": "",
    "beside/__init__.py": "",
    "beside/part.py": "from .other import LIMIT\nfrom . import third\n",
    "beside/other.py": "LIMIT = 1\n",
    "beside/third.py": "",
    "beside/alone.py": "",
    "loose/part.py": "",
    "broken/__init__.py": "raise RuntimeError('nobody imports this while a system is hashed')\n",
    "broken/part.py": "",
    "unfinished.py": "def (",
    "unrelated.py": "",
    "notes.txt": "",
}
COUNT = {
    "mine.py", "helper.py", "deeper.py", "lazy.py", "beside/__init__.py", "beside/part.py",
    "beside/other.py", "beside/third.py", "loose/part.py", "broken/__init__.py", "broken/part.py",
    "unfinished.py",
}  # fmt: skip


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the user's modules, from which Python imports."""
    folder = tmp_path / "own"
    for name, source in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    monkeypatch.syspath_prepend(folder)
    known = set(sys.modules)
    yield folder
    for name in set(sys.modules) - known:
        if name.partition(".")[0] in {file.split("/")[0].removesuffix(".py") for file in FILES}:
            del sys.modules[name]


def test_everything_that_a_system_of_ones_own_imports_counts(own: Path) -> None:
    system = build("mine:Mine")
    before = system_hash(system)
    seen = {before}
    for name in FILES:
        (own / name).write_text(FILES[name] + "\nEDITED = 1\n")
        after = system_hash(system)
        assert (after != before) == (name in COUNT), name
        seen.add(after)
        (own / name).write_text(FILES[name])
        assert system_hash(system) == before
    assert len(seen) == 1 + len(COUNT)
    assert "broken" not in sys.modules


def test_modules_imported_by_a_computed_name_count(own: Path) -> None:
    (own / "named.py").write_text(
        "import importlib\nfrom importlib import import_module as load\n"
        "from moebench.systems.smoe import SMoE\n"
        "importlib.import_module('help' + 'er')\n"
        "load('.'.join(('beside', 'alone')))\n"
        "__import__('un' + 'related')\n"
        "class Named(SMoE):\n"
        "    def __post_init__(self):\n"
        "        importlib.import_module('la' + 'zy')\n"
        "        super().__post_init__()\n"
    )
    before = system_hash(build("named:Named"))
    for name, counts in (
        ("helper.py", True), ("deeper.py", True), ("beside/alone.py", True), ("unrelated.py", True),
        ("lazy.py", True), ("mine.py", False), ("beside/part.py", False),
    ):  # fmt: skip
        (own / name).write_text(FILES[name] + "\nEDITED = 1\n")
        assert (system_hash(build("named:Named")) != before) == counts, name
        (own / name).write_text(FILES[name])
    assert system_hash(build("named:Named")) == before


def test_declared_sources_count(own: Path) -> None:
    (own / "tables").mkdir()
    (own / "tables" / "a.csv").write_text("1,2")
    (own / "declared.py").write_text(
        "from moebench.systems.smoe import SMoE\n"
        "class Declared(SMoE):\n    sources = ('notes.txt', 'tables')\n"
    )
    system = build("declared:Declared")
    before = system_hash(system)
    seen = {before}
    for name in ("notes.txt", "tables/a.csv", "tables/b.csv"):
        (own / name).write_text("changed")
        seen.add(system_hash(system))
    assert len(seen) == 4
    (own / "unrelated.py").write_text("EDITED = 1")
    assert system_hash(system) in seen
    (own / "notes.txt").unlink()
    with pytest.raises(UsageError) as caught:
        system_hash(system)
    assert str(caught.value) == (
        f"Declared.sources names notes.txt, and {own / 'notes.txt'} cannot be read: "
        "No such file or directory"
    )


def test_declared_folders_are_read_whole_and_in_order(own: Path) -> None:
    """Files of folders in folders count by their names; folders themselves do not."""
    for name in ("tables/b.csv", "tables/deep/c.csv", "tables/a.csv"):
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(name[-5])
    (own / "tables" / "empty").mkdir()
    (own / "folder_of_id.py").write_text(
        "from moebench.systems.smoe import SMoE\n"
        "class Declared(SMoE):\n    sources = ('tables', 'notes.txt')\n"
    )
    found = list(identity._sources(type(build("folder_of_id:Declared"))))
    del sys.modules["folder_of_id"]
    assert found == [
        ("tables/a.csv", b"a"), ("tables/b.csv", b"b"), ("tables/deep/c.csv", b"c"),
        ("notes.txt/.", b""),
    ]  # fmt: skip


def test_a_module_under_another_name_is_another_system(own: Path) -> None:
    before = system_hash(build("mine:Mine"))
    (own / "deeper.py").rename(own / "other.py")
    (own / "helper.py").write_text(FILES["helper.py"].replace("deeper", "other"))
    assert system_hash(build("mine:Mine")) != before


def test_a_policy_counts_with_the_system_that_uses_it() -> None:
    plain = system_hash(build("smoe"))
    assert system_hash(build("smoe", {"evict": "arc"})) != plain
    assert system_hash(build("smoe", {"alpha": "0.5"})) == plain  # options are the spec's


# --------------------------------------------------------------------------- code without prose

CODE = b'''"""A module."""
def f(x):
    """What it does."""
    return f"{x}:{x!r}"  # why
'''


@pytest.mark.parametrize(
    ("rewritten", "same"),
    [
        (b'def f(x):\n    return f"{x}:{x!r}"\n', True),
        (CODE.replace(b"What", b"Says what"), True),
        (CODE.replace(b"\n", b"\r\n"), True),
        (CODE.replace(b"def f(x):\n", b"def f(\n    x,\n):\n"), True),
        (CODE.replace(b"return", b"x = x\n    return"), False),
        (CODE.replace(b"{x!r}", b"{x}"), False),
        (CODE.replace(b'{x!r}"', b'{x!r}."'), False),
        (CODE.replace(b"def f(x)", b"def f(x=None)"), False),
        (b"def f(", False),
    ],
)
def test_prose_and_layout_are_no_code(rewritten: bytes, same: bool) -> None:
    assert (identity.syntax_of(rewritten) == identity.syntax_of(CODE)) is same


def test_equivalent_code_keeps_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"code": {identity.shared_code_hash(): "0ld"}, "systems": {}}
    monkeypatch.setattr(identity, "equivalents", lambda: known)
    identity.code_hash.cache_clear()
    try:
        assert code_hash() == "0ld"
        assert system_hash(build("smoe")) == identity.system_code_hash(build("smoe"))
    finally:
        identity.code_hash.cache_clear()


def test_the_committed_map_is_of_this_code() -> None:
    """A change of a figure takes lines of the map away; one of prose needs none."""
    known = json.loads((ROOT / "results" / "equivalent.json").read_text())
    hashes = [new for kind in known.values() for new in kind] + [
        old for kind in known.values() for old in kind.values()
    ]
    assert all(re.fullmatch("[0-9a-f]{16}", one) for one in hashes)
    chained = [old for kind in known.values() for new, old in kind.items() if old in kind]
    assert chained == []


# --------------------------------------------------------------------------- piece by piece


def test_a_profile_is_known_by_its_content_and_this_computer_by_the_time() -> None:
    spec = resolve(None, system="smoe", setting="S3")
    assert profile_hash(spec) == load_profile("a6000", "hf-eager").content_hash()
    assert profile_hash(spec) != load_profile("a6000").content_hash()
    local = resolve(None, system="smoe", setting="S3", machine="local")
    first, second = (datetime.fromisoformat(profile_hash(local)) for _ in range(2))
    assert first.utcoffset() == timedelta(0)
    assert first < second


def test_bits_are_part_of_the_id_where_a_format_gives_them() -> None:
    spec = resolve(None, system="smoe", setting="S3")
    assert bits_hash(spec) == {}
    quant = resolve(None, system="smoe", setting="S3", quant="q4_k_m")
    stored = quantised("q4_k_m", "qwen2-57b-a14b")
    assert bits_hash(quant) == {"bits": repr([*stored.bits, stored.rate])}


@pytest.mark.parametrize(
    ("module", "counts"),
    [
        ("os", False), ("os.path", False), ("numpy", True), ("mine", True), ("mine.deep", True),
        ("moebench", False), ("moebench.systems.smoe", True), ("moebench.substrate.terms", False),
        ("moebench.workloads.data", False), ("moebench.harness.run.learn", False),
        ("moebench.reports", True),
    ],
)  # fmt: skip
def test_modules_of_the_library_and_shared_ones_are_not_a_systems(
    module: str, counts: bool
) -> None:
    assert is_hashed(module) is counts


def test_sources_are_of_ones_own_modules_and_of_named_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    files = ("pack_of_id/__init__.py", "pack_of_id/part.py", "alone_of_id.py",
             "site-packages/inst_of_id.py")  # fmt: skip
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("A = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    none = frozenset[str]()
    assert _source("pack_of_id", none) == tmp_path / files[0]
    assert _source("pack_of_id.part", none) == tmp_path / files[1]
    assert _source("alone_of_id", none) == tmp_path / files[2]
    assert "pack_of_id" not in sys.modules, "no package is imported"
    assert _source("inst_of_id", none) is None
    assert _source("inst_of_id", frozenset({"inst_of_id"})) == tmp_path / files[3]
    for absent in ("pack_of_id.no", "alone_of_id.attribute", "no_such_of_id", "no_such_of_id.part",
                   "sys", "math"):  # fmt: skip
        assert _source(absent, none) is None
    assert find_module("pack_of_id.part").origin == str(tmp_path / files[1])
    assert find_module("json") is json.__spec__
    monkeypatch.setitem(sys.modules, "made_up_of_id", object())
    assert find_module("made_up_of_id") is None


@pytest.mark.parametrize(
    ("source", "package", "names"),
    [
        ("import a, b.c as d", "p", ["a", "b.c"]),
        ("from a.b import c, d as e", "p", ["a.b", "a.b.c", "a.b.d"]),
        ("from . import a\nfrom .b import c\nfrom ..d import e", "p.q",
         ["p.q", "p.q.a", "p.q.b", "p.q.b.c", "p.d", "p.d.e"]),
        ("from . import a\nimport b", "", ["b"]),
        ("import_module('a')\nimportlib.import_module('b')\n__import__('c')\nopen('d')\n"
         "import_module(4)\nimport_module(x)\nimport_module()", "p", ["a", "b", "c"]),
        ("def f(", "p", []), ("a = 1", "p", []),
    ],
)  # fmt: skip
def test_names_that_a_module_imports(source: str, package: str, names: list[str]) -> None:
    assert sorted(imports_of(source.encode(), package)) == sorted(names)


def test_a_file_that_is_no_python_stands_for_itself() -> None:
    assert syntax_of(b"def f(\n") == b"def f(\n"
    assert syntax_of(b"a\0") == b"a\0"
    assert syntax_of(b"x = 1  # why\n") == syntax_of(b"x  =  1") != syntax_of(b"x = 2")
    assert syntax_of(b"def f():\n  'd'\n  x") != syntax_of(b"def f():\n  x\n  'd'")


def test_what_was_computed_is_kept_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = CodeCache(tmp_path / "kept.json")
    monkeypatch.setattr(identity, "CACHE", kept)
    sources = [("a", b"x = 1"), ("b", b"x = 2")]
    found = identity._digest(sources, [b"more"])
    assert [*json.loads((tmp_path / "kept.json").read_text()).values()] == [[found]]
    whole = hashlib.sha256()
    for name, source in sources:
        whole.update(name.encode() + syntax_of(source))
    whole.update(b"more")
    assert found == whole.hexdigest()[:16]
    others = [
        identity._digest(*given)
        for given in (
            (sources,), (sources[::-1], [b"more"]), (sources, [b"other"]), (sources[:1], [b"more"]),
        )
    ]  # fmt: skip
    assert len({found, *others}) == 5


def test_the_shared_code_is_all_that_a_result_may_depend_on() -> None:
    """Every file of code of six folders, and one more."""
    folders = (
        "substrate", "workloads", "harness/stage", "harness/native", "harness/run",
        "systems/compiled",
    )  # fmt: skip
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".cpp", ".h"}
    ] + [ROOT / "harness" / "settings.py"]  # fmt: skip
    assert {path.suffix for path in files} == {".py", ".cpp", ".h"}
    seen: dict[str, bytes] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "_digest", lambda sources: seen.update(sources) or "hash")
        assert identity.shared_code_hash() == "hash"
    assert seen == {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in files}
