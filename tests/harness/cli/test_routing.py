"""`--routing drawn` and `real`: a second opinion on the routing of the scale model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moebench.harness.one_run import prepare, run
from moebench.harness.run.live import prepare as prepare_live
from moebench.harness.run.rules import resolve
from moebench.harness.sweep.plan import cells_from_file
from moebench.harness.sweep.worker import group_of
from moebench.results.store import Store
from moebench.substrate.traces.file import open_trace
from moebench.systems.options import build
from moebench.systems.registry import SYSTEMS
from tests.harness.commands import call, refused
from tests.harness.tiny import EXPERTS, LAYERS, TOP_K

pytestmark = pytest.mark.usefixtures("tiny_models")

#: A setting whose model the tiny catalogue has, and of which there are recordings.
MODEL = "mixtral-8x7b"
RUN = ("run", "--setting", "D1", "--system")


@pytest.fixture
def data() -> Path:
    """A data folder with a recording of four texts: 64 tokens and 5 passes each."""
    folder = Path("data") / "traces" / f"{MODEL}-instruct__code"
    folder.mkdir(parents=True)
    random, tokens = np.random.default_rng(0), 4 * 68
    ids = np.argsort(random.random((tokens, LAYERS, EXPERTS)), 2)[..., :TOP_K].astype(np.uint8)
    np.savez(folder / "trace.npz", ids=ids, seq=np.zeros(tokens, int), phase=np.ones(tokens, int))
    meta = {"num_experts": EXPERTS, "workload": "code", "ids_order": "by id"}
    (folder / "meta.json").write_text(json.dumps(meta))
    return Path("data")


def document(system: str, routing: str, *arguments: str | Path) -> dict[str, Any]:
    sizes = ("--prompts", "2", "--new-tokens", "5", "--routing", routing, "--json")
    called = call(*RUN, system, *sizes, *arguments)
    assert called.code == 0, called.err
    found: dict[str, Any] = called.json
    return found


def options(system: str) -> tuple[str, ...]:
    """As little learning as there can be, and room for a system that holds everything."""
    short = {
        "flashmoe": ("evict.epochs=1", "evict.tokens=32", "evict.hidden=4"),
        "duoserve": ("prefetch.epochs=1",),
    }
    sets = [word for option in short.get(system, ()) for word in ("--set", option)]
    whole = build(system).all_resident
    return (*sets, *(("--allow-overcommit", "--capacity", "1") if whole else ()))


# --------------------------------------------------------------------------- every system runs


#: What a drawn or imported trace lacks, by the system that reads it.
LACKING = {
    "edgemoe": "holds no losses of rounded weights, place=one-width measures them",
    "finemoe": "holds no embeddings", "hybrimoe": "1 MoE layer(s) ahead; prefetch=impact reads 3",
    "hobbit": "1 MoE layer(s) ahead; prefetch=stacked-gates reads 2",
    "promoe": "holds no hidden states",
    "sida": "holds no token embeddings, route=hash-function reads them; swap it with --set, or run "
    "without --routing",
    "swapmoe": "holds no norms of experts' weights, place=virtual-experts and "
    "admit=important-swaps read them; use --set admit.importance=gates, or run without --routing",
}  # fmt: skip


@pytest.mark.parametrize("system", LACKING)
@pytest.mark.parametrize("routing", ["drawn", "real"])
def test_what_such_traces_lack_is_one_line(system: str, routing: str, data: Path) -> None:
    line = refused(*RUN, system, "--routing", routing, "--data-dir", data)
    assert LACKING[system] in line


@pytest.mark.slow
@pytest.mark.parametrize("system", sorted(SYSTEMS.keys() - LACKING))
@pytest.mark.parametrize("routing", ["drawn", "real"])
def test_every_system_runs_and_says_whose_routing_it_had(
    system: str, routing: str, data: Path
) -> None:
    found = document(system, routing, "--data-dir", data, *options(system))
    assert found["spec"]["routing"] == routing
    assert any(note.startswith(f"routing is {routing}: ") for note in found["notes"])
    assert found["provenance"]["weights"].startswith("none: routing replayed from ")
    assert found["accuracy"]["score"] is None
    assert found["metrics"]["tpot_ms"] is not None
    assert found["metrics"]["ttft_ms"] is not None
    active = found["metrics"]["experts"]["decode"]["active"]
    whole = 2 * 4 * LAYERS * TOP_K  # two prompts, four decoded tokens
    assert active == whole or (system == "adapmoe" and active < whole), "it leaves experts out"
    for policy in found["provenance"]["learnt"].values():
        known = "other drawn texts" if routing == "drawn" else "the trace's last "
        assert known in policy["from"]


@pytest.mark.slow
def test_token_norms_that_a_trace_lacks_count_as_1_and_a_note_says_so() -> None:
    gates = ("--set", "admit.importance=gates", "--slots", "16")
    found = document("swapmoe", "drawn", *gates)
    note = "the trace holds no hidden states: the norm of every token counts as 1"
    assert note in found["notes"]
    assert found["metrics"]["cache_ratio"] == 1.0
    assert found["accuracy"]["kl"] is None


@pytest.mark.slow
def test_a_run_shows_its_routing() -> None:
    called = call(*RUN, "moe-ondemand", "--routing", "drawn", "--prompts", "1", "--new-tokens", "3")
    assert "routing\tdrawn" in called.out
    computed = call(*RUN, "moe-ondemand", "--prompts", "1", "--new-tokens", "3")
    assert "routing\tmodel" in computed.out
    called = call("report")
    header, *rows = [line.split("\t") for line in called.out.splitlines()[:3]]
    assert {row[header.index("routing")] for row in rows} == {"drawn", "model"}


# --------------------------------------------------------------------------- drawn


def prompt_lengths(seed: int) -> list[int]:
    """Return the lengths of a run's three prompts, with the seed."""
    given = {"system": "daop", "setting": "D1", "prompts": 3, "new_tokens": 4, "seed": seed}
    live = prepare_live(resolve(None, **given), None)
    return [len(question.prompt) for question in live.questions]


def test_a_drawn_trace_has_the_prompts_lengths_and_another_has_texts_to_learn_from() -> None:
    document("daop", "drawn", "--prompts", "3", "--new-tokens", "4", "--seed", "5")
    folders = (Path(".moebench") / "routing").iterdir()
    trace, learnt = sorted(map(open_trace, folders), key=lambda trace: len(trace.prompts))
    assert trace.prompts == prompt_lengths(5)
    assert len(learnt.prompts) == 64
    assert set(learnt.prompts) == set(prompt_lengths(0))
    assert {one.passes(s) for one in (trace, learnt) for s in range(len(one.prompts))} == {4}
    assert not np.array_equal(trace.ids_TLK[:3], learnt.ids_TLK[:3])


@pytest.mark.slow
def test_runs_with_other_seeds_learn_from_the_same_texts() -> None:
    """The third run, with other lengths, is shown other texts."""
    for seed, tokens, traces in ((5, "4", 2), (6, "4", 3), (6, "3", 5)):
        document("daop", "drawn", "--prompts", "3", "--new-tokens", tokens, "--seed", str(seed))
        assert len(list((Path(".moebench") / "routing").iterdir())) == traces


@pytest.mark.slow
def test_a_trace_is_drawn_once_for_all_systems_and_kept_in_the_store(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = document("moe-ondemand", "drawn", "--store", kept)
    (folder,) = (kept / "routing").iterdir()
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    other = document("smoe", "drawn", "--store", kept)
    assert {file: file.stat().st_mtime_ns for file in (kept / "routing" / folder.name).iterdir()}
    assert {file: file.stat().st_mtime_ns for file in before} == before
    hashes = {found["provenance"]["trace_hash"] for found in (first, other)}
    assert hashes == {open_trace(folder).hash}
    document("smoe", "drawn", "--store", kept, "--seed", "1")
    assert len(list((kept / "routing").iterdir())) == 2


def test_one_session_draws_the_same_trace_for_every_store(tmp_path: Path) -> None:
    given = {"system": "smoe", "setting": "D1", "prompts": 2, "new_tokens": 3, "routing": "drawn"}
    session = prepare(resolve(None, **given), None)
    documents = [run(session, tmp_path / store).document for store in ("one", "other")]
    assert documents[0]["metrics"] == documents[1]["metrics"]
    assert len({d["provenance"]["trace_hash"] for d in documents}) == 1


@pytest.mark.slow
def test_a_trace_that_was_spoilt_is_one_line(tmp_path: Path) -> None:
    document("moe-ondemand", "drawn")
    (folder,) = (Path(".moebench") / "routing").iterdir()
    (folder / "ids.npy").write_bytes(b"")
    line = refused(
        *RUN, "smoe", "--prompts", "2", "--new-tokens", "5", "--routing", "drawn"
    )  # fmt: skip
    assert "ids.npy is not what was written; record or import it again" in line


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"prompts": 3}, {"new_tokens": 4}, {"workload": "facts"}, {}]
)
def test_what_a_drawn_trace_depends_on_is_part_of_the_id(change: dict[str, Any]) -> None:
    base = {
        "system": "smoe", "setting": "D1", "prompts": 2, "new_tokens": 3, "routing": "drawn",
        "workload": "arithmetic",
    }  # fmt: skip
    one, other = (prepare(resolve(None, **base | c), None) for c in ({}, change))
    assert (one.run_id == other.run_id) == (not change)
    assert (one.hashes["trace"] == other.hashes["trace"]) == (not change)
    computed = prepare(resolve(None, **base | {"routing": "model"}), None)
    assert computed.run_id != one.run_id


# --------------------------------------------------------------------------- real


def test_a_recording_says_how_much_it_holds(data: Path) -> None:
    given = {"system": "smoe", "setting": "D1", "routing": "real", "new_tokens": 5}
    spec = resolve(data, **given)
    assert (spec.workload, spec.prompts, spec.new_tokens) == ("code", 2, 5)
    # Without a length, the setting's 512: one text of the whole recording.
    spec = resolve(data, **given | {"new_tokens": None})
    assert (spec.prompts, spec.new_tokens) == (1, 4 * 68 - 64 + 1)


def test_recordings_are_part_of_the_id_by_their_content(data: Path) -> None:
    def session() -> str:
        spec = resolve(data, system="smoe", setting="D1", routing="real", new_tokens=5)
        return prepare(spec, data).run_id

    before = session()
    (file,) = data.rglob("trace.npz")
    arrays = dict(np.load(file))
    assert session() == before
    arrays["ids"][3] = arrays["ids"][3, :, ::-1]
    np.savez(file, **arrays)
    assert session() != before


def test_who_learns_needs_a_text_that_is_not_replayed(data: Path) -> None:
    called = call(*RUN, "daop", "--routing", "real", "--data-dir", data)
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "recordings of mixtral-8x7b: daop must be calibrated" in called.err


# --------------------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("routing", "arguments", "says"),
    [
        ("drwan", (), "--routing drwan: allowed: model, replayed, drawn, real"),
        ("drawn", ("--trace", "x"), "--routing drawn and --trace: give one of them"),
        ("model", ("--trace", "x"), "--routing model and --trace: give one of them"),
        ("drawn", ("--weights", "x"), "--weights and --routing drawn: routing is replayed"),
        ("real", ("--weights", "x"), "--weights and --routing real: routing is replayed"),
        ("drawn", ("--scoring", "generation"), "--scoring and --routing drawn"),
        ("drawn", ("--calibrate-from", "facts"), "--calibrate-from and --routing drawn"),
        ("drawn", ("--reconstruct-scores",), "give --trace"),
        ("real", ("--workload", "facts"), "--workload and --routing real"),
        ("real", ("--few-shot", "2"), "--few-shot and --routing real"),
        ("real", ("--prompts", "3", "--new-tokens", "5"), "recordings of mixtral-8x7b holds 2"),
        ("real", ("--new-tokens", "999"), "holds 209 new tokens"),
        ("real", ("--model", "phi-3.5-moe"), "there is of: mixtral-8x7b); --routing drawn"),
        ("drawn", ("--workload", "nothing"), "unknown workload 'nothing'"),
    ],
)
def test_what_cannot_be_is_one_line(
    data: Path, routing: str, arguments: tuple[str, ...], says: str
) -> None:
    line = refused(*RUN, "smoe", "--data-dir", data, "--routing", routing, *arguments)
    assert says in line


@pytest.mark.parametrize("arguments", [(), ("--data-dir", "hub:")])
def test_recordings_are_in_a_folder(arguments: tuple[str, ...]) -> None:
    line = refused(*RUN, "smoe", "--routing", "real", *arguments)
    assert "give --data-dir DIR, or --routing drawn" in line


# --------------------------------------------------------------------------- sweeps


def test_a_sweep_has_routing_as_an_axis(data: Path) -> None:
    called = call(
        "sweep", "--systems", "moe-ondemand,smoe", "--settings", "D1", "--routings",
        "model,drawn,real", "--prompts", "2", "--new-tokens", "3", "--data-dir", data, "--jobs",
        "0", "--json",
    )  # fmt: skip
    assert called.code == 0, called.err
    assert len(called.json["cells"]) == 6
    runs = Store(Path(".moebench")).runs()
    assert (
        sorted(r["spec"]["routing"] for r in runs) == ["drawn"] * 2 + ["model"] * 2 + ["real"] * 2
    )
    assert len(list((Path(".moebench") / "routing").iterdir())) == 2


def test_cells_on_one_routing_follow_each_other(data: Path) -> None:
    plan = {
        "common": {"setting": "D1", "prompts": 2, "new_tokens": 3},
        "product": {"routing": ["model", "drawn", "real"], "system": ["smoe", "moe-ondemand"]},
    }
    Path("s.yaml").write_text(json.dumps(plan))
    specs = cells_from_file(Path("s.yaml"), data)
    groups = [group_of(spec) for spec in specs]
    assert [groups.count(g) for g in dict.fromkeys(groups)] == [2, 2, 2]
