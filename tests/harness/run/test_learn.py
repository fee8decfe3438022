"""What systems learn from before a run, that it is part of the run's id, and where it is kept."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.one_run import prepare, run
from moebench.harness.run import learn
from moebench.harness.run.learn import (
    NEW_TOKENS,
    LosslessModel,
    not_replayed,
    source,
    texts,
    written,
)
from moebench.harness.run.rules import resolve
from moebench.results.spec import RunSpec
from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.models import rounding
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.terms import LOOKAHEADS, RoutedSequence
from moebench.substrate.traces import observe
from moebench.substrate.traces.file import TraceFile, open_trace
from moebench.substrate.traces.recipes import SynthesisRecipe
from moebench.substrate.traces.replay import routings
from moebench.substrate.traces.synthesis import Synthesis, Topology, synthesize
from moebench.systems.options import build
from tests.harness.commands import SMALL, call, refused
from tests.harness.commands import run as run_small

pytestmark = pytest.mark.usefixtures("tiny_models")

MODEL = "qwen2-57b-a14b"
SEQUENCES, PROMPT, NEW = 12, 8, 6


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory, tiny_models: None) -> Callable[[int], Path]:
    """Traces by their seed, in which some experts are used much more than others."""
    made: dict[int, Path] = {}

    def draw(seed: int) -> Path:
        if seed not in made:
            made[seed] = tmp_path_factory.mktemp("drawn") / f"seed-{seed}"
            recipe = SynthesisRecipe(static=0.6, common=0.9)
            synthesis = Synthesis(Topology.of(model_shape(MODEL)), recipe, seed)
            synthesize(synthesis, MODEL, [PROMPT] * SEQUENCES, NEW, made[seed])
        return made[seed]

    return draw


# --------------------------------------------------------------------------- whose texts


@pytest.mark.parametrize("system", ["daop", "flashmoe", "duoserve"])
@pytest.mark.parametrize(("told", "learns_from"), [(None, "facts"), ("passages", "passages")])
def test_whose_train_half(system: str, told: str | None, learns_from: str, tmp_path: Path) -> None:
    """The run's own, unless another was named; a data folder changes nothing."""
    (tmp_path / "sharegpt").mkdir()
    (tmp_path / "sharegpt" / "train.jsonl").touch()
    for folder in (None, tmp_path):
        spec = resolve(folder, system=system, setting="D1", workload="facts", calibrate_from=told)
        assert source(spec).name == learns_from


def test_a_workload_without_a_train_split_is_one_line(tmp_path: Path) -> None:
    called = call("run", "--system", "daop", *SMALL, "--workload", "mt_bench")
    assert (called.code, called.err.count("\n")) == (2, 1)
    spec = resolve(None, system="daop", setting="S3", workload="mt_bench")
    with pytest.raises(UsageError, match="no train split; give --calibrate-from WORKLOAD"):
        source(spec)


# --------------------------------------------------------------------------- how many texts


def drawn_texts(system: str, overrides: dict[str, str], **given: Any) -> int:
    spec = spec_of(system, overrides=overrides, **given)
    return len(texts(spec, build(system, overrides), given.get("data_dir")).examples)


@pytest.mark.parametrize(
    ("system", "overrides", "given", "count"),
    [
        ("flashmoe", {}, {}, 512),  # FlashMoE §3.2
        ("duoserve", {}, {}, 64),
        ("daop", {}, {}, 16),  # its paper names no number
        ("flashmoe", {"place": "popular"}, {}, 512),  # as many as the one that asks for most
        ("moe-ondemand", {"place": "popular"}, {}, 16),
        ("flashmoe", {}, {"calibrate_texts": 5}, 5),
        ("daop", {}, {"calibrate_texts": 1200}, 1200),
    ],
)
def test_how_many_texts_are_shown(
    system: str, overrides: dict[str, str], given: dict[str, int], count: int
) -> None:
    assert drawn_texts(system, overrides, **given) == count


def test_all_that_there_are_where_the_paper_shows_more(tmp_path: Path) -> None:
    lines = [
        {"id": f"q{i}", "prompt": f"What is {i}?", "choices": None, "answer": "a", "answers": None}
        for i in range(20)
    ]
    (tmp_path / "gsm8k").mkdir()
    for split in ("test", "train"):
        rows = [json.dumps({**line, "split": split}) for line in lines]
        (tmp_path / "gsm8k" / f"{split}.jsonl").write_text("\n".join(rows) + "\n")

    def shown(**given: Any) -> int:
        spec = resolve(tmp_path, system="flashmoe", setting="S3", workload="gsm8k", **given)
        return len(texts(spec, build("flashmoe"), tmp_path).examples)

    assert shown() == 20  # FlashMoE's 512 are not there
    assert shown(calibrate_texts=7) == 7
    with pytest.raises(InputError, match=r"gsm8k/train\.jsonl: 21 prompts wanted, 20 available"):
        shown(calibrate_texts=21)


@pytest.mark.parametrize(("asked", "shown"), [(None, 8), (3, 3), (8, 8)])
def test_a_replay_learns_from_the_last_sequences(
    drawn: Callable[[int], Path], asked: int | None, shown: int
) -> None:
    spec = resolve(
        None, system="flashmoe", setting="F1", trace=str(drawn(0)), prompts=4, model=MODEL,
        calibrate_texts=asked,
    )  # fmt: skip
    trace = open_trace(drawn(0))
    found = not_replayed(trace, spec, build("flashmoe"), "drawn")
    assert found.origin == f"the trace's last {shown} sequences"
    last = routings(trace)[SEQUENCES - shown :]
    assert [s.ids_TLK.tolist() for s in found.sequences] == [s.ids_TLK.tolist() for s in last]


def test_a_replay_that_leaves_fewer_texts_than_asked_for_is_one_line(
    drawn: Callable[[int], Path],
) -> None:
    said = refused(
        "run", "--system", "flashmoe", "--setting", "S3", "--trace", drawn(0),
        "--prompts", "4", "--calibrate-texts", "9",
    )  # fmt: skip
    assert "--calibrate-texts 9" in said
    assert "holds 8 sequences beside the 4 that are replayed; give fewer --prompts" in said


def test_what_cannot_run_is_refused_before_it_learns(here: Path) -> None:
    """Two slots cannot be shared by four layers; 512 texts would be written first."""
    said = refused("run", "--system", "flashmoe", *SMALL, "--slots", "2")
    assert "room for 2 experts" in said
    assert "each of 4 layers needs one" in said
    assert not (here / ".moebench" / "calibration").exists()


def test_a_run_says_how_many_texts_it_learnt_from(here: Path) -> None:
    document = run_small("daop", "--calibrate-texts", "3", "--calibrate-from", "facts")
    assert "place learnt from facts: 3 texts, train split" in document["notes"]
    assert document["spec"]["calibrate_texts"] == 3


# --------------------------------------------------------------------------- the run's identity

#: The least training that is one.
FLASH = {"evict.epochs": "1", "evict.tokens": "32", "evict.hidden": "4"}


def spec_of(system: str, **given: Any) -> RunSpec:
    given = {"setting": "S3", "workload": "arithmetic", "prompts": 1, "new_tokens": 3} | given
    return resolve(None, system=system, **given)


def test_the_texts_that_are_learnt_from_are_part_of_the_id() -> None:
    nobody, one, other = (
        prepare(spec_of(system, calibrate_from=name), None)
        for system, name in [("smoe", "facts"), ("daop", "facts"), ("daop", "passages")]
    )
    assert not [name for name in nobody.hashes if name.startswith("calibration")]
    assert one.hashes["calibration"] != other.hashes["calibration"]
    assert one.run_id != other.run_id
    # Sharing weights and questions, another system learns from what its own spec says.
    assert nobody.varied(one.spec).run_id == one.run_id
    assert one.varied(nobody.spec).run_id == nobody.run_id


def test_a_trace_that_a_policy_names_is_part_of_the_id(
    tmp_path: Path, drawn: Callable[[int], Path]
) -> None:
    """By its content: the same folder with another trace in it is another run."""
    named = tmp_path / "learn-from"
    named.symlink_to(drawn(0))
    spec = spec_of("flashmoe", overrides=FLASH | {"evict.trace": str(named)})
    before, again = prepare(spec, None), prepare(spec, None)
    assert before.hashes["calibration evict"] == open_trace(drawn(0)).hash
    assert before.run_id == again.run_id
    named.unlink()
    named.symlink_to(drawn(1))
    after = prepare(spec, None)
    assert after.run_id != before.run_id
    assert {k for k in before.hashes if before.hashes[k] != after.hashes[k]} == {
        "calibration evict"
    }


def test_a_replay_may_learn_from_another_trace(drawn: Callable[[int], Path]) -> None:
    told = {
        "setting": "F1", "trace": str(drawn(0)), "model": MODEL, "prompts": 1, "new_tokens": 3,
    }  # fmt: skip
    sessions = [
        prepare(
            resolve(None, system="flashmoe", **told, overrides=FLASH | {"evict.trace": str(path)}),
            None,
        )
        for path in (drawn(0), drawn(1))
    ]
    assert len({session.run_id for session in sessions}) == 2
    assert [s.hashes["calibration evict"] for s in sessions] == [
        open_trace(drawn(seed)).hash for seed in (0, 1)
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere", "no trace nowhere: no such folder"),
        ("qwen2-57b-a14b__arithmetic", "28 layers of 64 experts; the model has 4 of 8"),
    ],
)
def test_a_trace_of_no_use_is_one_line(name: str, said: str) -> None:
    called = call("run", "--system", "flashmoe", *SMALL, "--set", f"evict.trace={name}")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert said in called.err


# --------------------------------------------------------------------------- what was learnt


@pytest.mark.slow
def test_the_document_says_what_every_policy_learnt_from(
    here: Path, drawn: Callable[[int], Path]
) -> None:
    trace = open_trace(drawn(0))
    options = [x for k, v in FLASH.items() for x in ("--set", f"{k}={v}")]
    asked = (
        "flashmoe", "--set", f"evict.trace={drawn(0)}", *options, "--set", "place=popular",
        "--calibrate-from", "facts", "--store", "kept",
    )  # fmt: skip
    document = run_small(*asked)
    learnt = document["provenance"]["learnt"]
    assert set(learnt) == {"place", "evict"}
    assert learnt["evict"].pop("from") == f"trace {drawn(0)} ({trace.hash})"
    assert learnt["evict"]  # how training went
    assert learnt["place"]["from"] == "facts: 16 texts, train split"
    assert int(learnt["place"]["tokens"]) > 16
    # Routing and networks lie in the store that was named, and nowhere else.
    artefacts = sorted(path.name for path in (here / "kept" / "calibration").iterdir())
    assert len(artefacts) == 2
    assert all(name.endswith(".safetensors") for name in artefacts)
    assert not (here / ".moebench").exists()
    # The next run takes them from there.
    times = {path: path.stat().st_mtime_ns for path in (here / "kept" / "calibration").iterdir()}
    again = run_small(*asked, "--force")
    assert again["provenance"]["learnt"]["place"] == learnt["place"]
    assert again["metrics"] == document["metrics"]
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_who_learns_nothing_says_so(here: Path) -> None:
    assert run_small("moe-ondemand")["provenance"]["learnt"] == {}
    assert not (here / ".moebench" / "calibration").exists()


# --------------------------------------------------------------------------- place=popular


def expected_ratio(trace: TraceFile, learn: range, replay: range, placed: int) -> float:
    """The share of decoded uses that the most used experts of other sequences cover.

    A prompt's other experts pass through one more slot, by layer and id; the last one stays there.
    """

    def uses(sequence: int, rows: slice) -> list[tuple[int, int]]:
        ids = trace.arrays["ids"][trace.sequences[sequence][rows]]
        return [(layer, int(e)) for row in ids for layer, chosen in enumerate(row) for e in chosen]

    counts = Counter(pair for s in learn for pair in uses(s, slice(None)))
    every = [(layer, e) for layer in range(4) for e in range(8)]
    popular = set(sorted(every, key=lambda pair: (-counts[pair], pair))[:placed])
    hits, decoded = 0, 0
    for s in replay:
        passing = {max(pair for pair in uses(s, slice(PROMPT)) if pair not in popular)}
        new = uses(s, slice(PROMPT, None))
        hits += sum(pair in popular | passing for pair in new)
        decoded += len(new)
    return hits / decoded


#: Placed experts stay, one slot is left empty, and in decode the host computes all others.
KEPT = {"evict": "static", "evict.staging": "1", "assign": "host"}


def test_popular_experts_are_learnt_placed_and_used(
    tmp_path: Path, drawn: Callable[[int], Path]
) -> None:
    """The ratio is worked out again from the trace."""
    trace = open_trace(drawn(0))
    found = {}
    for place in ("popular", "by-id"):
        spec = resolve(
            None, system="moe-ondemand", setting="S3", trace=str(drawn(0)), prompts=4,
            cache_ratio=0.25, overrides={"place": place, **KEPT},
        )  # fmt: skip
        document = run(prepare(spec, None), tmp_path).document
        found[place] = document["metrics"]["cache_ratio"]
        assert document["spec"]["slots"] == 8  # a quarter of 4 · 8
    expected = expected_ratio(trace, range(4, SEQUENCES), range(4), 8 - 1)
    assert found["popular"] == pytest.approx(expected, abs=1e-6)
    assert found["popular"] > found["by-id"]


@pytest.mark.slow
def test_popular_experts_are_learnt_from_texts(here: Path) -> None:
    """The same on a live run, whose lossless model writes the texts."""
    given = [x for key, value in KEPT.items() for x in ("--set", f"{key}={value}")]
    small = ("--capacity", "0.25", "--prompts", "2", "--new-tokens", "12")
    popular, by_id = (
        run_small("moe-ondemand", "--set", f"place={place}", *given, *small)
        for place in ("popular", "by-id")
    )
    assert popular["metrics"]["cache_ratio"] > by_id["metrics"]["cache_ratio"]
    assert popular["provenance"]["learnt"]["place"]["from"].startswith("arithmetic: 16 texts")


def test_given_popularity_is_not_learnt(here: Path) -> None:
    counts = json.dumps([[8 - e for e in range(8)]] * 4)
    given = run_small(
        "moe-ondemand", "--set", "place=popular", "--set", f"place.popularity={counts}"
    )
    assert given["provenance"]["learnt"] == {}


def test_a_replay_of_every_sequence_leaves_nothing_to_learn_from(
    drawn: Callable[[int], Path],
) -> None:
    called = call(
        "run", "--system", "moe-ondemand", "--setting", "S3", "--trace", drawn(0),
        "--set", "place=popular",
    )  # fmt: skip
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "all 12 sequences are replayed; give fewer --prompts" in called.err


# --------------------------------------------------------------------------- texts that are written


#: All that a policy may learn from beside the chosen experts.
EVERYTHING: Any = frozenset(
    ("scores", "hidden", "embedding", "token_embeddings", "predictions", "sensitivity", "loss")
)


class Written:
    """Replaces the model: a prompt is its number, and its answer is ten times that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[Any] = []
        monkeypatch.setattr(learn, "TOGETHER", 2)
        monkeypatch.setattr(learn, "PROMPT_TOKENS", 3)
        monkeypatch.setattr(
            learn, "build_prompt", lambda chosen, example: f"{chosen.name} {example}"
        )
        monkeypatch.setattr(observe, "write", self.write)
        monkeypatch.setattr(observe, "read", self.read)

    @property
    def model(self) -> Any:
        def encode(text: str) -> Any:
            name, number = text.split()
            assert name == "facts"
            return SimpleNamespace(ids=[int(number)] * (2 + int(number)))

        sensitive = SimpleNamespace(sensitivity=self.sensitivity)
        return LosslessModel(
            lambda: "decoder", lambda: sensitive, lambda forms: ("rounded", forms), "w1",  # type: ignore
            SimpleNamespace(encode=encode), 7,  # type: ignore[arg-type]
        )  # fmt: skip

    def write(self, decoder: str, prompts: list[list[int]], new: int, end: int) -> Any:
        self.log.append(("write", decoder, prompts, new, end))
        return [[10 * one[0]] for one in prompts]

    def read(self, decoder: str, texts: Any, prefill: int, *asked: Any) -> list[RoutedSequence]:
        self.log.append(("read", decoder, texts, prefill, *asked))
        kinds, states, tokens = asked
        (text,) = texts
        shape = (len(text), 1, 2)
        whole = np.full(shape, text[0], np.float32)
        return [RoutedSequence(
            np.zeros(shape, np.int64), prefill, scores_TLE=whole + 1,
            hidden_TLH=whole + 2 if states else None,
            embedding_H=np.array([text[0] + 0.5], np.float32) if states else None,
            embedding_TH=whole[:, 0] + 3 if tokens else None,
            predicted_TLE={kind.value: whole + 4 for kind in kinds},
        )]  # fmt: skip

    def sensitivity(self, text: list[int], seed: int) -> Any:
        self.log.append(("sensitivity", text, seed))
        return np.array([seed + 0.25], np.float32)

    def learnt(self, folder: Path, told: list[Any], also: Any, predicted: Any = ()) -> Any:
        sample: Any = SimpleNamespace(examples=[1, 2, 3], data_hash="d1")
        facts: Any = SimpleNamespace(name="facts")
        return written(facts, sample, self.model, folder, lambda *done: told.append(done), also,
                       predicted)  # fmt: skip


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Written:
    return Written(monkeypatch)


def test_texts_are_written_in_batches_read_one_by_one_and_kept(
    writer: Written, tmp_path: Path
) -> None:
    told: list[Any] = []
    kinds = list(LOOKAHEADS[:1])
    found = writer.learnt(tmp_path, told, EVERYTHING, kinds)
    assert found.origin == "facts: 3 texts, train split"
    assert told == [(2, 3), (3, 3)]
    prompts = [[1, 1, 1], [2, 2, 2], [3, 3, 3]]
    texts = [[*prompt, 10 * prompt[0]] for prompt in prompts]
    reads: list[Any] = [
        step for n, text in enumerate(texts) for step in (
            ("read", "decoder", [text], 3, kinds, True, True), ("sensitivity", text, n))
    ]  # fmt: skip
    assert writer.log == [
        ("write", "decoder", prompts[:2], NEW_TOKENS, 7), *reads[:4],
        ("write", "decoder", prompts[2:], NEW_TOKENS, 7), *reads[4:],
    ]  # fmt: skip
    for n, (text, one) in enumerate(zip(texts, found.sequences, strict=True)):
        assert (one.ids_TLK.shape, one.prefill) == ((4, 1, 2), 3)
        assert (one.scores_TLE == text[0] + 1).all()
        assert (one.hidden_TLH == text[0] + 2).all()
        assert one.embedding_H.tolist() == [text[0] + 0.5]
        assert (one.embedding_TH == text[0] + 3).all()
        assert (one.predicted_TLE[kinds[0].value] == text[0] + 4).all()
        assert one.sensitivity_L.tolist() == [n + 0.25]
        assert one.tokens_T.tolist() == text
        assert (one.ids_TLK.dtype, one.tokens_T.dtype) == (np.int16, np.int32)
    writer.log.clear()
    again = writer.learnt(tmp_path, told, EVERYTHING, kinds)
    assert writer.log == []
    assert [one.tokens_T.tolist() for one in again.sequences] == texts


def test_nothing_is_kept_of_what_nobody_learns_from(writer: Written, tmp_path: Path) -> None:
    """Predictions are made only where they are learnt from; files differ by what they hold."""
    kinds = [*LOOKAHEADS]
    (plain, *_) = writer.learnt(tmp_path, [], frozenset(), kinds).sequences
    assert plain.scores_TLE is plain.hidden_TLH is plain.embedding_H is plain.embedding_TH is None
    assert plain.sensitivity_L is plain.tokens_T is None
    assert not plain.predicted_TLE
    assert [step[4:] for step in writer.log if step[0] == "read"] == [([], False, False)] * 3
    for also, asked in (({"hidden"}, ([], True, False)), ({"embedding"}, ([], True, False)),
                        ({"token_embeddings"}, ([], False, True)),
                        ({"predictions"}, (kinds, False, False))):  # fmt: skip
        writer.log.clear()
        some = writer.learnt(tmp_path, [], frozenset(also), kinds[::-1]).sequences[0]
        assert [step[4:] for step in writer.log if step[0] == "read"] == [asked] * 3
        held = {
            "hidden": some.hidden_TLH, "embedding": some.embedding_H, "scores": some.scores_TLE,
            "token_embeddings": some.embedding_TH, "sensitivity": some.sensitivity_L,
            "loss": some.tokens_T, "predictions": some.predicted_TLE or None,
        }  # fmt: skip
        assert {name for name, one in held.items() if one is not None} == also
    assert len([one for one in tmp_path.iterdir() if one.suffix == ".safetensors"]) == 5


def test_losses_are_those_of_a_model_with_rounded_experts(
    writer: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounding, "RoundedLosses", lambda make, found, name: (make(), found, name))
    learnt = writer.learnt(tmp_path, [], frozenset({"loss"}))
    losses = [learnt.losses(forms) for forms in ([0, 1], [0, 1], [0])]
    assert losses[0][0] == ("rounded", [0, 1])
    assert losses[0][1] is learnt.sequences
    assert losses[0][2] == losses[1][2] != losses[2][2]


# ------------------------------------------------------------------------------ all policies


class Learning:
    """A policy that notes what it is fitted on."""

    def __init__(self, name: str, *learns_from: str, calibrates: bool = True, trace: str = "",
                 without_losses: str = "") -> None:  # fmt: skip
        self.name, self.learns_from, self.calibrates = name, frozenset(learns_from), calibrates
        self.calibration_trace, self.without_losses = trace, without_losses
        self.learnt: dict[str, Any] = {"epochs": name}
        self.seen: list[Any] = []

    def calibrate(self, *given: Any) -> None:
        self.seen.append(("calibrate", *given))

    def measure(self, *given: Any) -> None:
        self.seen.append(("measure", *given))


def test_policies_are_fitted_on_the_same_texts_or_on_a_trace_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Texts are written once; losses are of the system's forms of weights."""
    policies = {
        "place": Learning("a"), "evict": Learning("b", "loss"), "route": Learning("c", trace="t"),
        "prefetch": Learning("d", calibrates=False),
    }  # fmt: skip
    system: Any = SimpleNamespace(policies=policies, forms=("bf16", "int4"))
    asked: list[str] = []

    def learnable() -> learn.Learnable:
        asked.append("texts")
        sequences: Any = "the texts"
        return learn.Learnable(sequences, "a workload", lambda forms: ("losses", *forms))  # type: ignore[arg-type, return-value]

    own: Any = learn.Learnable("a trace", "trace t")  # type: ignore[arg-type]
    monkeypatch.setattr(learn, "recorded", lambda policy, shape, decision: {"route": own}[decision])
    shape: Any = "a shape"
    found = learn.calibrate(system, shape, learnable, tmp_path, learn.silent)
    assert found == {
        "place": {"from": "a workload", "epochs": "a"},
        "evict": {"from": "a workload", "epochs": "b"},
        "route": {"from": "trace t", "epochs": "c"},
    }
    assert asked == ["texts"]
    rest = (shape, tmp_path / "calibration", learn.silent)
    fitted = ("calibrate", "the texts", *rest)
    assert policies["place"].seen == [fitted]
    assert policies["evict"].seen == [fitted, ("measure", ("losses", "bf16", "int4"), *rest)]
    assert policies["route"].seen == [("calibrate", "a trace", *rest)]
    assert policies["prefetch"].seen == []


@pytest.mark.parametrize(
    ("option", "instead"), [("", ""), ("loss=none", ", or give --set evict.loss=none")]
)
def test_losses_are_refused_where_no_model_computes(
    option: str, instead: str, tmp_path: Path
) -> None:
    policy = Learning("b", "loss", without_losses=option)
    system: Any = SimpleNamespace(policies={"evict": policy}, forms=())
    texts_: Any = learn.Learnable([], "a trace")
    shape: Any = None
    with pytest.raises(UsageError) as refusal:
        learn.calibrate(system, shape, lambda: texts_, tmp_path, learn.silent)
    assert str(refusal.value) == (
        "a trace: holds no losses of rounded weights, evict=Learning measures them; run it live, "
        f"or swap it with --set{instead}"
    )
