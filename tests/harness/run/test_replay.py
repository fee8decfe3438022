"""What a replay can answer, what it refuses, and what it says of itself."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.run import replay
from moebench.harness.run.replay import (
    ReplaySession,
    _check,
    _check_predictions,
    _check_weight_norms,
    _notes,
    _of_the_system,
    _random_weights,
    _without,
    readers_of_scores,
)
from moebench.substrate.errors import UsageError
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.models.shape import Form
from moebench.substrate.terms import WORDS, Lookahead

#: Scale models have names; a name of another model has none.
SCALED, OTHER = "mixtral-8x7b", "deepseek-v3"


def spec(**more: Any) -> Any:
    base = {"model": SCALED, "trace": "some", "routing": "model", "title": "mine", "prompts": 2,
            "new_tokens": 5, "batch": 1, "reconstruct_scores": False}  # fmt: skip
    return SimpleNamespace(**base | more)


def policy(**more: Any) -> Any:
    base = {"reads_hidden": False, "reads_embedding": False, "reads_token_embeddings": False,
            "reads_weight_norms": False, "reads_scores": False, "calibrates": True,
            "learns_from": frozenset(), "predictor": None, "without_weight_norms": "",
            "without_losses": ""}  # fmt: skip
    return SimpleNamespace(**base | more)


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies are called by their decision, in capitals; a policy learns what it says."""
    monkeypatch.setattr(replay, "name_of", lambda decision, one: decision.upper())
    monkeypatch.setattr(replay.learn, "learnt_from", lambda ones: set().union(
        *(one.learns_from for one in ones)))  # fmt: skip


def system(**policies: Any) -> Any:
    plain = {"route": policy(), "prefetch": policy()}
    return SimpleNamespace(policies=policies, **plain | policies)


def source(
    holds: tuple[str, ...] = (), scores: str | None = "softmax", session: Any = None, **ahead: int
) -> Any:
    header = SimpleNamespace(
        has=lambda what: what in holds, scores=scores, predictions=ahead,
        layers_ahead=lambda kind: ahead.get(kind, 0),
    )  # fmt: skip
    return SimpleNamespace(name="the trace", header=header, session=session)


def said(check: Any, *given: Any) -> str | None:
    try:
        check(*given)
    except UsageError as error:
        return str(error)
    return None


RECORD = "--trace, or record a trace that holds them: moebench trace record"


@pytest.mark.parametrize(
    ("needs", "holds", "says"),
    [
        ({}, (), None),
        ({"reads_hidden": True}, ("hidden",), None),
        ({"reads_hidden": True}, ("embedding",),
         f"the trace: holds no {WORDS['hidden']}, evict=EVICT reads them; swap it with --set, run "
         f"without {RECORD}"),
        ({"reads_embedding": True}, ("hidden",),
         f"the trace: holds no {WORDS['embedding']}, evict=EVICT reads them; swap it with --set, "
         f"run without {RECORD}"),
        ({"learns_from": {"hidden"}}, (),
         f"the trace: holds no {WORDS['hidden']}, evict=EVICT learns from them; swap it with "
         f"--set, run without {RECORD}"),
        ({"reads_token_embeddings": True}, (),
         f"the trace: holds no {WORDS['token_embeddings']}, evict=EVICT reads them; swap it with "
         "--set, or run without --trace"),
        ({"learns_from": {"hidden"}}, ("hidden",), None),
    ],
)  # fmt: skip
def test_a_trace_must_hold_what_a_policy_reads_or_learns_from(
    needs: dict[str, Any], holds: tuple[str, ...], says: str | None
) -> None:
    assert said(_check, spec(), source(holds), system(evict=policy(**needs))) == says


def test_losses_are_known_where_a_model_computes() -> None:
    made = system(evict=policy(learns_from={"loss"}, without_losses="evict.x=1"))
    assert "evict" in str(said(_check, spec(), source(), made))
    assert said(_check, spec(), source(session="live"), made) is None


def test_gate_scores_are_recorded_or_reconstructed() -> None:
    reads, none = system(evict=policy(reads_scores=True)), system(evict=policy())
    assert readers_of_scores(reads) == ["evict=EVICT"]
    assert readers_of_scores(none) == []
    assert said(_check, spec(), source(), reads) is None
    assert said(_check, spec(), source(scores=None), none) is None
    assert said(_check, spec(), source(scores=None), reads) == (
        "the trace: holds no gate scores, mine reads them (evict=EVICT); swap these with --set, or "
        "give --reconstruct-scores"
    )
    again = spec(reconstruct_scores=True)
    assert said(_check, again, source(scores=None), reads) is None
    assert said(_check, again, source(), none) == "--reconstruct-scores: the trace has gate scores"


def test_norms_of_weights_are_of_a_computing_model() -> None:
    one = policy(reads_weight_norms=True, without_weight_norms="place=popular")
    other = policy(reads_weight_norms=True)
    begin = "the trace: holds no norms of experts' weights, "
    assert said(_check_weight_norms, spec(), source(), system(evict=policy())) is None
    assert said(_check_weight_norms, spec(), source(), system(place=one)) == (
        f"{begin}place=PLACE reads them; use --set place=popular, or run without --trace"
    )
    assert said(_check_weight_norms, spec(), source(), system(evict=other)) == (
        f"{begin}evict=EVICT reads them; use --set other policies, or run without --trace"
    )
    assert said(_check, spec(), source(), system(place=one, evict=other)) == (
        f"{begin}place=PLACE and evict=EVICT read them; use --set place=popular, or run without "
        "--trace"
    )


def predictor(kind: Lookahead, layers: int = 1, in_prefill: bool = False) -> Any:
    return SimpleNamespace(lookahead=kind, layers=layers, in_prefill=in_prefill)


GATE = Lookahead.GATE
AGAIN = "record the trace again"


@pytest.mark.parametrize(
    ("decision", "asks", "of", "held", "says"),
    [
        ("route", None, {}, {}, None),
        ("route", predictor(Lookahead.NONE), {}, {}, None),
        ("route", predictor(Lookahead.EXACT), {}, {}, None),
        ("route", predictor(GATE), {}, {"gate": 1}, None),
        ("route", predictor(GATE), {}, {},
         f"no predictions of kind gate (it holds: none); route=ROUTE reads them; use --set "
         f"route=exact, or {AGAIN}"),
        ("prefetch", predictor(GATE), {}, {"layer": 1, "normed": 2},
         "no predictions of kind gate (it holds: layer, normed); prefetch=PREFETCH reads them; use "
         f"--set prefetch=none, or {AGAIN}"),
        ("prefetch", predictor(GATE, 3), {}, {"gate": 2},
         "predictions of kind gate 2 MoE layer(s) ahead; prefetch=PREFETCH reads 3; use --set "
         f"prefetch=none, or {AGAIN}"),
        # A recording holds so many layers; more are known to a live run alone.
        ("prefetch", predictor(GATE, 99), {}, {"gate": 2},
         "predictions of kind gate 2 MoE layer(s) ahead; prefetch=PREFETCH reads 99; use --set "
         "prefetch=none, or run without --trace"),
        ("prefetch", predictor(GATE), {"trace": None, "routing": "drawn"}, {},
         "no predictions of kind gate (it holds: none); prefetch=PREFETCH reads them; use --set "
         "prefetch=none, or run without --routing"),
        ("prefetch", predictor(GATE, in_prefill=True), {}, {"gate": 1},
         "predictions of decoded tokens only; prefetch=PREFETCH predicts in prefill; use --set "
         "prefetch=none, or run without --trace"),
    ],
)  # fmt: skip
def test_predictions_reach_as_far_as_a_system_asks(
    decision: str, asks: Any, of: dict[str, Any], held: dict[str, int], says: str | None
) -> None:
    made = system(**{decision: policy(predictor=asks)})
    expected = None if says is None else f"the trace: holds {says}"
    assert said(_check_predictions, spec(**of), source(**held), made) == expected
    assert said(_check, spec(**of), source(**held), made) == expected


def test_a_live_run_needs_weights() -> None:
    assert _without(spec()) == "run without --trace"
    assert _without(spec(trace=None)) == "run without --routing"
    assert _without(spec(model=OTHER)) == "run without --trace"
    assert _without(spec(model=OTHER, trace=None)) == (
        "give --weights DIR (no scale model of deepseek-v3 ships)"
    )


# ------------------------------------------------------------------------- notes


def test_notes_on_what_a_system_would_have_changed() -> None:
    class Header:
        held = False

        def has(self, what: str) -> bool:
            return what == "hidden" and self.held

    header: Any = Header()
    low = Form(name="low", dtype="int8", pool=0.5)

    def noted(
        forms: int = 1, route: bool = True, assign: bool = True, norms: bool = False
    ) -> list[str]:
        made = SimpleNamespace(
            forms=[Form(), low, Form(name="half", share=0.5, pool=0.1)][:forms], alpha=0.25,
            route=SimpleNamespace(lossless_at=lambda alpha: route and alpha == 0.25),
            assign=SimpleNamespace(lossless=assign), reads_token_norms=norms,
        )  # fmt: skip
        return _of_the_system(spec(), made, header)  # type: ignore[arg-type]

    substitutes = [
        "mine substitutes experts; the trace does not follow the text that it would have written"
    ]
    assert noted() == []
    assert noted(route=False) == noted(assign=False) == noted(route=False, assign=False)
    assert noted(route=False) == substitutes
    assert noted(forms=2) == [
        "records in other forms (low) are charged; the trace does not follow the text that mine "
        "would have written with them"
    ]
    assert "(low, half)" in noted(forms=3)[0]
    assert noted(norms=True) == [
        "the trace holds no hidden states: the norm of every token counts as 1"
    ]
    Header.held = True
    assert noted(norms=True) == []


@pytest.mark.parametrize(
    ("distinct", "more"), [(64, []), (9, ["9 random records stand for 64 experts"])]
)
def test_random_weights_may_stand_for_several_experts(distinct: int, more: list[str]) -> None:
    shape = SimpleNamespace(moe_layers=range(8), num_experts=8)
    weights: Any = SimpleNamespace(shape=shape, distinct=distinct)
    assert _random_weights(weights) == [
        "weights are random numbers in the model's shape; routing decides which are used", *more,
    ]  # fmt: skip


def session(**more: Any) -> Any:
    """A replay of three sequences: of 6, 4 and 9 passes after 3, 0 and 8 tokens."""
    header = SimpleNamespace(
        model=SCALED, workload="facts", predictions={}, lossless=True, notes=["own"], top_k=2,
        source={"weights_hash": "w1"}, has=lambda what: True,
    )  # fmt: skip
    made = object.__new__(ReplaySession)
    made.spec = spec(**more)
    made.trace = SimpleNamespace(  # type: ignore[assignment]
        header=header, hash="h1", passes=(6, 4, 9).__getitem__, prompt=(3, 1, 8).__getitem__,
        prompts=[3, 0, 8],
    )  # fmt: skip
    made.replayed = SimpleNamespace(lookaheads=[], reconstruction=None)  # type: ignore[assignment]
    made.source = source()
    made.source.under = None
    made.sample = SimpleNamespace(source="shipped", available=9)  # type: ignore[assignment]
    made.system = SimpleNamespace(forms=[Form()], alpha=0, reads_token_norms=False,  # type: ignore
                                  route=SimpleNamespace(lossless_at=lambda alpha: True),
                                  assign=SimpleNamespace(lossless=True))  # fmt: skip
    return made


def test_a_replay_knows_its_lengths_and_where_it_is_from() -> None:
    one, two = session(prompts=1), session(prompts=3)
    assert (one.without_prompt, two.without_prompt) == (0, 1)
    assert (one.unknown_latencies, two.unknown_latencies) == ((), ("ttft_ms", "e2e_ms"))
    assert (one.longest, two.longest) == (3 + 5, 8 + 5)
    assert one.origin == {
        "weights": "none: routing replayed from the trace", "weights_hash": "w1",
        "trace_hash": "h1", "data": "shipped: 1 of 9",
    }  # fmt: skip
    assert one.accuracy() == {
        "score": None, "stderr": None, "metric": None, "chance": None, "cut": None,
        "agreement": None, "kl": None, "n": 0,
        "items": {"value": [], "answer": [], "decoded": [], "agreed": [], "kl": []},
    }  # fmt: skip


def test_a_batch_ends_with_its_shortest_sequence() -> None:
    asked: list[Any] = []
    stage: Any = SimpleNamespace(engine=SimpleNamespace(
        generate=lambda prompts, passes: asked.append(([*map(len, prompts)], passes))))  # fmt: skip
    made = session(prompts=3, batch=2, new_tokens=8)
    made.answer(stage, slice(0, 2))
    made.answer(stage, slice(2, 4))
    assert asked == [([3, 1], 4), ([8], 8)]
    asked.clear()
    made.begin(stage, 3, batches=2)
    made.begin(stage, 30)
    assert asked == [([3, 1], 3), ([8], 3), ([3, 1], 4)]
    one = session(prompts=3, batch=1, new_tokens=2)
    asked.clear()
    one.begin(stage, 99)
    assert asked == [([3], 2)]


def test_notes_on_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_of_the_law", lambda of: f"law of {of.model}")
    replayed = "routing replayed from trace h1 (mixtral-8x7b, facts)"
    assert _notes(session(prompts=1)) == [replayed, "own"]
    made = session(prompts=1, new_tokens=7, routing="drawn")
    made.source.under = "a law"
    made.trace.header.lossless = False
    made.trace.header.top_k = 3
    made.trace.header.predictions = {"gate": SimpleNamespace(made="by the gate")}
    made.replayed.lookaheads = ["gate", "layer"]
    made.replayed.reconstruction = SimpleNamespace(note="reconstructed")
    made.system.assign.lossless = False
    assert _notes(made) == [
        "law of mixtral-8x7b", "routing is drawn: the trace", replayed,
        "predictions as recorded: by the gate",
        "the recorded system substituted experts: the text is not the model's own",
        "mine substitutes experts; the trace does not follow the text that it would have written",
        "reconstructed", "sequences hold 6 to 6 tokens: a batch ends with its shortest",
        "the trace ran with top-3, the model has top-2", "own",
    ]  # fmt: skip
    two = session(prompts=2, new_tokens=5)
    assert _notes(two) == [
        replayed,
        "1 of 2 sequences have no recorded prompt: their first decoded token stands for it, so "
        "TTFT is not known",
        "sequences hold 4 to 6 tokens: a batch ends with its shortest", "own",
    ]  # fmt: skip
    assert _notes(session(prompts=2, new_tokens=4))[2:] == ["own"]


def test_the_law_says_from_how_many_families_it_is() -> None:
    note = replay._of_the_law(spec(model=OTHER))
    assert note.startswith("no scale model and no recorded routing of deepseek-v3: drawn by a law")
    law = replay.LAW
    assert f"rows {law.lasting:g}, of neighbours {law.next:g}" in note
    assert f"a recall of {law.recipe.recall:g})" in note


def test_a_trace_of_another_top_k_is_charged_as_it_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(replay, "_hashes", lambda *given: asked.append(given) or {"trace": "t"})
    monkeypatch.setattr(replay, "ReplaySession", lambda **given: given)
    for top_k, charged in ((2, 2), (3, 3), (1, 1), (8, 2), (9, 2)):  # of eight experts
        of = source()
        of.header.top_k, of.sample = top_k, "sample"
        monkeypatch.setattr(replay, "source_of", lambda spec, data, of=of: of)
        one = spec(make_system=lambda: "made")
        found = replay.prepare(one, Path("data"))
        assert found.pop("full") == model_shape(SCALED).model_copy(update={"top_k": charged})
        assert found == {"spec": one, "system": "made", "sample": "sample", "source": of,
                         "hashes": {"trace": "t"}, "data_dir": Path("data")}  # fmt: skip
        assert asked[-1][:3] == (one, "made", of)
        assert asked[-1][3].top_k == charged


@pytest.mark.parametrize("wanted", [False, True])
def test_scores_are_reconstructed_only_if_the_run_asks_for_it(
    wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def stop(*arguments: Any) -> None:
        given.append(arguments[-1])
        raise UsageError("that is enough")

    monkeypatch.setattr(replay, "Replay", stop)
    made = session(reconstruct_scores=wanted)
    made.full = model_shape(SCALED)
    made.source.open = lambda scratch: made.trace
    made.system.evict, made.system.lookaheads, made.system.reads_hidden = None, (), False
    with pytest.raises(UsageError, match="enough"):
        made.open(Path(), False, None)  # type: ignore[arg-type]
    (reconstruction,) = given
    assert (reconstruction is not None) is wanted
