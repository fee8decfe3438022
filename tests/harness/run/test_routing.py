"""Where the routing of a replay is from, with traces that are names alone."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.run import routing
from moebench.harness.run.routing import LEARNABLE, Source, _kept, source_of
from moebench.substrate.errors import UsageError
from moebench.substrate.traces.law import LAW


class Spec(SimpleNamespace):
    """A spec whose copies have other fields."""

    def model_copy(self, update: dict[str, Any]) -> "Spec":
        return Spec(**vars(self) | update)


def spec(**more: Any) -> Any:
    base = {"trace": None, "routing": "drawn", "model": "mixtral-8x7b", "seed": 5, "batch": 2,
            "prompts": 3, "new_tokens": 7, "calibrate_texts": None}  # fmt: skip
    return Spec(**base | more)


SCRATCH = Path("scratch")

#: Seed of texts to learn from; other texts would change what all systems learn.
LEARNT_SEED = 2**31


def source(**more: Any) -> Source:
    base: dict[str, Any] = {"name": "n", "header": "h", "hash": "x", "sample": "s",
                            "open": lambda scratch: f"trace in {scratch}"}  # fmt: skip
    return Source(**base | more)


def test_systems_learn_from_other_texts_or_from_the_last_ones() -> None:
    assert source().learnable(SCRATCH, 4) == ("trace in scratch", 4)
    other = source(learnt=lambda scratch: f"others in {scratch}")
    assert other.learnable(SCRATCH, 4) == ("others in scratch", 0)


def test_a_given_trace_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    header = SimpleNamespace(workload="facts")
    trace = SimpleNamespace(header=header, sequences=[0] * 9, hash="t1")
    monkeypatch.setattr(routing, "find_trace", lambda name: f"found {name}")
    monkeypatch.setattr(routing, "open_trace", {"found some": trace}.__getitem__)
    found = source_of(spec(trace="some"), None)
    assert (found.name, found.header, found.hash) == ("some", header, "t1")
    sample = found.sample
    assert (sample.source, sample.seed, sample.available, sample.data_hash, sample.examples) == (
        "trace of facts", 5, 9, "t1", (),
    )  # fmt: skip
    assert found.open(SCRATCH) is trace
    assert (found.under, found.session, found.learnt) == (None, None, None)


@pytest.mark.parametrize("kind", ["replayed", "drawn", "real"])
def test_each_kind_of_routing_has_its_source(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in ("replayed", "drawn", "real"):
        monkeypatch.setattr(routing, f"_{one}", lambda *given, one=one: (one, *given))
    of = spec(routing=kind)
    assert source_of(of, Path("d")) == (kind, of, Path("d"))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Traces are opened by their place; hashes are what they are of."""
    found: list[Any] = []
    monkeypatch.setattr(routing, "content_hash", lambda *parts: repr(parts))
    monkeypatch.setattr(routing, "_kept", lambda name, write: (name, write))
    return found


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("texts", [None, 4])
def test_a_trace_is_drawn_with_the_prompts_lengths_and_others_to_learn_from(
    known: bool, texts: int | None, made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompts have 10 and 15 tokens by seed 5, and 1, 2 and 3 by seed 0."""

    def prompts_to_draw(of: Any, data_dir: Any) -> Any:
        assert data_dir == Path("d")
        lengths = {5: (10, 15), 0: (1, 2, 3)}[of.seed]
        return f"sample {of.seed}", [SimpleNamespace(prompt=[0] * n) for n in lengths]

    def synthesized(of: Any, sample: Any, lengths: Any, recipe: Any, name: str) -> Source:
        made.append((of.seed, sample, [*lengths], recipe, name))
        return source(hash=f"hash {of.seed}", open=f"open {of.seed}", name=name)

    monkeypatch.setattr(routing, "prompts_to_draw", prompts_to_draw)
    monkeypatch.setattr(routing, "recipes", lambda: {"mixtral-8x7b": "recipe"} if known else {})
    monkeypatch.setattr(routing, "_synthesized", synthesized)
    found = source_of(spec(calibrate_texts=texts), Path("d"))
    name = "a trace drawn as mixtral-8x7b routes, seed 5"
    if not known:
        name = "a trace drawn for mixtral-8x7b by the law of recorded families, seed 5"
    recipe = "recipe" if known else LAW.recipe
    more = ([1, 2, 3] * 99)[: texts or LEARNABLE]
    assert made == [(5, "sample 5", [10, 15], recipe, name),
                    (LEARNT_SEED, "sample 0", more, recipe, name)]  # fmt: skip
    assert (found.open, found.learnt) == ("open 5", f"open {LEARNT_SEED}")
    assert found.hash == repr((["hash 5", f"hash {LEARNT_SEED}"],))
    assert (found.under is None) is known
    if found.under is not None:
        law: Any = SimpleNamespace(recipe="other")
        found.under(law)
        assert made[-1] == (5, "sample 5", [10, 15], "other", f"{name}, {law}")


def test_a_drawn_trace_depends_on_its_recipe_lengths_and_seed(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    header = SimpleNamespace(model_dump=lambda mode: f"header as {mode}")
    monkeypatch.setattr(routing, "Topology", SimpleNamespace(of=lambda shape: "topology"))
    monkeypatch.setattr(routing, "model_shape", lambda name: name)
    monkeypatch.setattr(routing, "drawn_header", lambda *given: made.append(given) or header)
    monkeypatch.setattr(routing, "Synthesis", lambda *given: ("synthesis", *given))
    monkeypatch.setattr(routing, "synthesize", lambda *given: made.append(given))
    found = routing._synthesized(spec(), "sample", [1, 2], "recipe", "name")  # type: ignore[arg-type]
    of = repr((["header as json", [1, 2], 7],))
    assert (found.name, found.header, found.hash, found.sample) == ("name", header, of, "sample")
    place, write = found.open  # type: ignore[misc]
    assert place == f"drawn-{of}"
    write(Path("out"))
    assert made == [
        ("topology", "recipe", 5, "mixtral-8x7b"),
        (("synthesis", "topology", "recipe", 5, 0), "mixtral-8x7b", [1, 2], 7, Path("out")),
    ]


def test_a_run_is_recorded_once_for_all_that_replay_it(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    header = SimpleNamespace(source={"weights": "some weights"})
    session = SimpleNamespace(run_id="r1", sample="sample", spec="resident")
    monkeypatch.setattr(routing, "once", lambda of: f"once {of.model}")
    monkeypatch.setattr(
        routing, "prepare_live", lambda of, data: made.append((of, data)) or session
    )
    monkeypatch.setattr(routing, "planned_header", lambda of: header)
    monkeypatch.setattr(routing, "record", lambda *given: made.append(given))
    found = source_of(spec(routing="replayed"), Path("d"))
    of = repr((["r1", routing.EXACT],))
    assert (found.name, found.header, found.hash) == ("a recording of some weights", header, of)
    assert (found.sample, found.session) == ("sample", session)
    place, write = found.open  # type: ignore[misc]
    assert place == f"replayed-{of}"
    write(Path("out"))
    assert made == [("once mixtral-8x7b", Path("d")), ("resident", Path("d")),
                    (session, Path("out"), routing.EXACT)]  # fmt: skip


def test_a_kept_trace_is_made_once_by_this_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote: list[Path] = []
    monkeypatch.setattr(routing, "code_hash", lambda: "c1")
    monkeypatch.setattr(routing, "open_trace", lambda folder: f"opened {folder.name}")

    def write(folder: Path) -> None:
        wrote.append(folder)
        folder.mkdir(parents=True)

    for _ in range(2):
        assert _kept("n", write)(tmp_path) == "opened n-c1"
    assert wrote == [tmp_path / "routing" / "n-c1"]
    monkeypatch.setattr(routing, "code_hash", lambda: "c2")
    _kept("n", write)(tmp_path)
    assert wrote[-1].name == "n-c2"

    def fails(folder: Path) -> None:
        raise UsageError("it exists")

    def other_was_faster(folder: Path) -> None:
        folder.mkdir(parents=True)
        raise UsageError("it exists")

    with pytest.raises(UsageError):
        _kept("m", fails)(tmp_path)
    assert _kept("m", other_was_faster)(tmp_path) == "opened m-c2"
