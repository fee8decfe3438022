"""Both kinds of session give the runner what it needs; inputs are hashed by content."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from moebench.harness.one_run import prepare, run
from moebench.harness.run import session as session_module
from moebench.harness.run.interval import add_interval
from moebench.harness.run.live import LiveSession
from moebench.harness.run.replay import ReplaySession
from moebench.harness.run.rules import resolve
from moebench.harness.run.session import Session
from moebench.results.spec import RunSpec
from moebench.substrate.engine.system import System
from moebench.substrate.machines import profile
from moebench.substrate.machines.profile import MACHINES, HardwareProfile
from moebench.substrate.models.catalogue import model_shape, scale_path
from moebench.substrate.traces.file import open_trace
from moebench.substrate.traces.recipes import SynthesisRecipe
from moebench.substrate.traces.synthesis import Synthesis, Topology, synthesize
from tests.harness.commands import SCALE_MODEL
from tests.reports.samples import RUN as SAMPLE

pytestmark = pytest.mark.usefixtures("tiny_models")

SEQUENCES, PROMPT, NEW = 4, 8, 6


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory, tiny_models: None) -> Path:
    """A small drawn trace."""
    folder = tmp_path_factory.mktemp("drawn") / "trace"
    recipe = SynthesisRecipe(static=0.5, recall=0.8)
    synthesis = Synthesis(Topology.of(model_shape(SCALE_MODEL)), recipe, seed=0)
    synthesize(synthesis, SCALE_MODEL, [PROMPT] * SEQUENCES, NEW, folder)
    return folder


@pytest.fixture(params=["live", "replay"])
def spec_of(request: pytest.FixtureRequest, trace: Path) -> Callable[..., RunSpec]:
    """A spec of either kind: four prompts, two at once, three new tokens."""
    source: dict[str, Any] = {"workload": "arithmetic"}
    if request.param == "replay":
        source = {"trace": str(trace)}

    def make(system: str, **given: Any) -> RunSpec:
        sizes = {"prompts": SEQUENCES, "batch": 2, "new_tokens": 3, "cache_ratio": 0.25}
        return resolve(None, system=system, setting="S3", **source, **sizes, **given)

    return make


# --------------------------------------------------------------------------- the runner's protocol


def test_a_session_carries_a_run_from_its_spec_to_its_document(
    spec_of: Callable[..., RunSpec], tmp_path: Path
) -> None:
    spec = spec_of("smoe")
    session = prepare(spec, None)
    assert isinstance(session, LiveSession if spec.trace is None else ReplaySession)
    seen: list[tuple[int, int]] = []
    outcome = run(session, tmp_path, lambda done, total: seen.append((done, total)))
    document = outcome.document
    assert document["run_id"] == session.run_id
    assert seen == [(1, 2), (2, 2)]
    assert [len(g.tokens) for g in outcome.generations] == [2, 2]
    assert all(len(tokens) == 3 for g in outcome.generations for tokens in g.tokens)
    # Decode alone: 2 batches · 2 steps · 4 layers, of 2 to 4 experts each.
    active = document["metrics"]["experts"]["decode"]["active"]
    assert active == sum(len(keys) for g in outcome.generations for s in g.used for keys in s)
    assert 2 * 2 * 4 * 2 <= active <= 2 * 2 * 4 * 4
    assert document["spec"] | spec.model_dump(exclude={"cache_ratio", "slots"}) == document["spec"]
    assert (document["spec"]["cache_ratio"], document["spec"]["slots"]) == (0.25, 8)
    assert document["spec"]["alpha"] == 0.25
    assert document["provenance"]["system_hash"] == session.hashes["system"]
    kinds = {"score", "n", "stderr", "chance", "cut", "metric", "agreement", "kl", "items"}
    assert set(document["accuracy"]) == kinds
    session.close()


#: DAOP places what it learns; a replay of every sequence would leave nothing to learn from.
LEARNT = {"place.popularity": json.dumps([[8 - e for e in range(8)]] * 4)}


@pytest.mark.parametrize("system", ["smoe", "daop"])
def test_a_system_is_built_once_a_run(
    spec_of: Callable[..., RunSpec], system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a policy learns, and what it places, is known to the system that runs."""
    spec = spec_of(system) if system == "smoe" else spec_of(system, overrides=LEARNT)
    built: list[System] = []
    check = System.__post_init__

    def count(self: System) -> None:
        built.append(self)
        check(self)

    monkeypatch.setattr(System, "__post_init__", count)
    session = prepare(spec, None)
    run(session, tmp_path)
    assert [id(system) for system in built] == [id(session.system)]
    varied = session.varied(spec)
    assert [id(system) for system in built] == [id(session.system), id(varied.system)]


def test_a_run_builds_its_system_twice_and_parses_its_profile_and_computes_its_id_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`resolve` builds the system to check its options, and `prepare` builds the one that runs."""
    counts: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def count(*args: Any, **named: Any) -> Any:
            counts[name] += 1
            return real(*args, **named)

        monkeypatch.setattr(owner, name, count)

    profile._profile.cache_clear()
    counted(System, "__post_init__")
    counted(HardwareProfile, "from_mapping")
    counted(session_module, "run_id")
    spec = resolve(None, system="smoe", setting="S3", prompts=1, new_tokens=2)
    assert counts == {"__post_init__": 1}
    session = prepare(spec, None)
    assert isinstance(session, LiveSession)
    outcome = run(session, tmp_path)
    assert outcome.document["run_id"] == session.run_id
    assert counts == {"__post_init__": 2, "from_mapping": 1, "run_id": 1}
    add_interval(outcome.document, session, tmp_path)
    assert (counts["from_mapping"], counts["run_id"]) == (1, 1)
    session.close()


def test_a_session_under_another_spec_is_a_session_prepared_for_it(
    spec_of: Callable[..., RunSpec], tmp_path: Path
) -> None:
    one, other = (
        prepare(spec_of(system, machine=machine), None)
        for system, machine in [("smoe", "a6000"), ("moe-ondemand", "h100")]
    )
    varied = one.varied(other.spec)
    assert (varied.run_id, varied.hashes) == (other.run_id, other.hashes)
    assert one.run_id != other.run_id
    documents = [run(session, tmp_path).document for session in (varied, other)]
    for part in ("metrics", "accuracy", "spec", "notes"):
        assert documents[0][part] == documents[1][part]


def test_runs_of_one_session_are_equal(spec_of: Callable[..., RunSpec], tmp_path: Path) -> None:
    """Also when a run before them left prefills to share."""
    spec = spec_of("smoe")
    first = prepare(spec, None)
    found, shared = [run(first, tmp_path).document], None
    for session in (first.varied(spec), first.varied(spec)):
        shared = session.share(shared)
        found.append(run(session, tmp_path).document)
    for document in found[1:]:
        assert document["metrics"] == found[0]["metrics"]
        assert document["run_id"] == found[0]["run_id"]


def names(document: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Every name in a document, with the names that it lies below."""
    for name, value in document.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from names(value, f"{prefix}{name}.")


def test_the_samples_of_reports_have_the_shape_of_a_run(tmp_path: Path) -> None:
    spec = resolve(
        None, system="smoe", setting="S3", workload="arithmetic", prompts=1, new_tokens=3
    )  # fmt: skip
    session = prepare(spec, None)
    document = run(session, tmp_path).document
    add_interval(document, session, tmp_path)
    found = set(names(document))
    # What was learnt, and what the device waited for, differs from run to run.
    sample = [name for name in names(SAMPLE) if not re.search(r"\.(learnt|stall_ms)\.", name)]
    assert sorted(set(sample) - found) == []


# --------------------------------------------------------------------------- replays


def test_a_replay_says_that_it_knows_no_text(trace: Path, tmp_path: Path) -> None:
    spec = resolve(None, system="moe-ondemand", setting="S3", trace=str(trace), prompts=2)
    document = run(prepare(spec, None), tmp_path).document
    accuracy = document["accuracy"]
    assert (accuracy["score"], accuracy["n"], accuracy["kl"]) == (None, 0, None)
    provenance = document["provenance"]
    assert provenance["weights"] == f"none: routing replayed from {trace}"
    assert provenance["trace_hash"] == open_trace(trace).hash
    assert provenance["data"] == "trace of synthesized: 2 of 4"


def test_a_replays_id_is_of_the_traces_content(trace: Path, tmp_path: Path) -> None:
    def session(folder: Path) -> Session:
        return prepare(resolve(None, system="smoe", setting="S3", trace=str(folder)), None)

    moved = shutil.copytree(trace, tmp_path / "moved")
    assert session(moved).run_id == session(trace).run_id
    other = tmp_path / "other"
    recipe = SynthesisRecipe(static=0.5, recall=0.8)
    synthesis = Synthesis(Topology.of(model_shape(SCALE_MODEL)), recipe, 1)
    synthesize(synthesis, SCALE_MODEL, [PROMPT] * SEQUENCES, NEW, other)
    assert session(other).run_id != session(trace).run_id


# --------------------------------------------------------------------------- live inputs


@pytest.fixture
def own(tmp_path: Path) -> RunSpec:
    """A run whose every input is a file that a test may change."""
    shutil.copytree(scale_path(SCALE_MODEL), tmp_path / "weights")
    shutil.copy(MACHINES / "a6000.yaml", tmp_path / "box.yaml")
    return RunSpec(
        system="smoe", machine=str(tmp_path / "box.yaml"), model=SCALE_MODEL,
        workload="arithmetic", weights=str(tmp_path / "weights"), prompts=1, new_tokens=2,
    )  # fmt: skip


def change_weights(folder: Path) -> None:
    file = folder / "weights" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def change_tokenizer(folder: Path) -> None:
    file = folder / "weights" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["added_tokens"][0]["lstrip"] = True
    file.write_text(json.dumps(tokenizer))


def change_machine(folder: Path) -> None:
    file = folder / "box.yaml"
    profile = yaml.safe_load(file.read_text())
    profile["link"]["pinned_h2d"]["value"] += 0.5
    file.write_text(yaml.safe_dump(profile))


@pytest.mark.parametrize(
    ("change", "hashed"),
    [(change_weights, "weights"), (change_tokenizer, "tokenizer"), (change_machine, "profile")],
)
def test_every_input_is_part_of_the_identity(
    own: RunSpec, tmp_path: Path, change: Callable[[Path], None], hashed: str
) -> None:
    before, again = prepare(own, None), prepare(own, None)
    assert before.run_id == again.run_id
    change(tmp_path)
    after = prepare(own, None)
    assert after.run_id != before.run_id
    assert {key for key in before.hashes if before.hashes[key] != after.hashes[key]} == {hashed}


def test_another_name_or_date_of_the_files_changes_nothing(own: RunSpec, tmp_path: Path) -> None:
    before = prepare(own, None)
    for file in (tmp_path / "weights").iterdir():
        file.touch()
    (tmp_path / "weights" / "README.md").write_text("a note")
    assert prepare(own, None).run_id == before.run_id


def test_each_hash_counts(own: RunSpec) -> None:
    session = prepare(own, None)
    names = {"weights", "tokenizer", "model", "data", "profile", "system", "torch", "numpy",
             "numba"}  # fmt: skip
    assert set(session.hashes) == names
    hashes, ids = session.hashes, {session.run_id}
    for name in names:
        ids.add(replace(session, hashes=hashes | {name: "0"}).run_id)
    assert len(ids) == 1 + len(names)
