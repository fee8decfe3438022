"""A recorded trace beside a decoder that computes: answers are recorded, work is done."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.substrate.errors import UsageError
from moebench.substrate.terms import Gate, Lookahead
from moebench.substrate.traces.computing import RoutedDecoder
from moebench.substrate.traces.passes import PassTrace, Recorder, RoutingTrace, TracedModel
from tests.substrate.engine.fakes import small_shape

SHAPE = small_shape(layers=2)
SCORES, IDS = np.array([[0.1, 0.7, 0.2]]), np.array([[1, 2]])
STATE, NORMS = np.array([[3.0, 4.0]]), np.array([9.0])


class FakeDecoder:
    """Notes its calls and answers with words of its own."""

    shape = SHAPE

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        def called(*given: Any) -> Any:
            self.calls.append((name, *given))
            return f"{name} of the decoder"

        return called


def trace() -> RoutingTrace:
    """Return one batch of two prompts: a prefill of three rows and a decoded token of each."""
    prefill = PassTrace(
        (2, 1), {0: Gate(SCORES, IDS), 1: Gate(SCORES, IDS)},
        {Lookahead.GATE: {(0, 1): SCORES * 2}}, {0: STATE}, {1: NORMS}, STATE * 3, [5, 6],
    )  # fmt: skip
    decode = PassTrace((1, 1), {0: Gate(SCORES, IDS)}, chosen=[7, 8])
    return RoutingTrace(SHAPE, [[prefill, decode]], {0: STATE * 7})


def model_of() -> tuple[Any, FakeDecoder]:
    decoder: Any = FakeDecoder()
    return RoutedDecoder(trace(), decoder), decoder


def test_the_decoder_computes_and_the_trace_answers() -> None:
    model, decoder = model_of()
    assert model.shape is SHAPE
    model.begin([[1, 2], [3]], 2)
    assert str(model.embed("prefill")) == "embed of the decoder"
    assert model.gate(0).ids_TK is IDS
    assert (model.predict(0, 1, [2], Lookahead.GATE) == SCORES * 2).all()
    assert model.hidden(0) is STATE
    assert model.token_norms(0).tolist() == [5]
    assert model.gate(1).scores_TE is SCORES
    assert model.token_norms(1) is NORMS
    assert (model.token_embeddings() == STATE * 3).all()
    assert (model.embedding() == STATE * 7).all()
    exact = model.predict(0, 1, [], Lookahead.EXACT)
    assert exact[0, :3].tolist() == [0, 2, 1], "what the later gate chose, best first"
    assert model.head() == [5, 6]
    assert str(model.attend(0)) == "attend of the decoder"
    assert decoder.calls == [
        ("begin", [[1, 2], [3]], 2), ("embed", "prefill"), ("gate", 0),
        ("predict", 0, 1, [2], Lookahead.GATE), ("gate", 1), ("head",), ("attend", 0),
    ]  # fmt: skip
    model.embed("decode")
    model.gate(0)
    with pytest.raises(UsageError, match="the trace holds no hidden states; run the system live"):
        model.hidden(0)
    with pytest.raises(UsageError, match="the trace holds no token embeddings"):
        model.token_embeddings()
    assert model.token_norms(0) is None
    assert model.head() == [7, 8]


def test_a_replay_computes_nothing_and_refuses_other_prompts() -> None:
    model = TracedModel(trace())
    with pytest.raises(UsageError) as refused:
        model.begin([[1], [2]], 2)
    assert str(refused.value) == (
        "the trace's next batch has prompts of [2, 1] tokens, the run of [1, 1]; replay it with "
        "the prompts and the batch size it recorded"
    )
    with pytest.raises(UsageError, match="the trace holds 2 passes; the run asks for 3 passes"):
        TracedModel(trace()).begin([[1, 2], [3]], 3)
    model = TracedModel(trace())
    model.begin([[1, 2], [3]], 2)
    assert (model.embed("prefill"), model.embed("decode")) == (3, 2)
    given: Any = None
    nothing = (model.attend(0), model.shared(0), model.combine(0), model.dense(0),
               model.weigh(0, given), model.compute(0, [1]), model.compute_on_host(0, [1], True),
               model.route_ahead(0, given), model.defer(0, [1]))  # fmt: skip
    assert nothing == (None,) * 9
    assert model.dispatch(0, np.array([[2, 0, -1]]), given) == {0: 1, 2: 1}
    assert model.dispatch(0, np.array([[2, 0], [2, -1], [5, 2]]), given) == {0: 1, 2: 3, 5: 1}
    with pytest.raises(UsageError, match="the trace holds no further batch; the run asks for 1"):
        model.begin([[1]], 1)
    with pytest.raises(UsageError, match="predictions of kind gate that layer 0 made of layer 1"):
        model.predict(0, 1, [], Lookahead.GATE)
    bare = RoutingTrace(SHAPE, [trace().batches[0]])
    model = TracedModel(bare)
    model.begin([[1, 2], [3]], 1)
    with pytest.raises(UsageError, match="the trace holds no embeddings; run the system live"):
        model.embedding()


def test_what_a_model_answers_is_recorded_as_a_copy() -> None:
    scores, ids, state = SCORES.copy(), IDS.copy(), STATE.copy()
    inner: Any = SimpleNamespace(
        shape=SHAPE, begin=lambda *of: None, embed=lambda phase: 4 if phase == "prefill" else 2,
        gate=lambda layer: Gate(scores, ids), hidden=lambda layer: state,
        predict=lambda *of: scores, token_norms=lambda layer: None, head=lambda: [1, 2],
        token_embeddings=lambda: state, embedding=lambda: state, other="another attribute",
    )  # fmt: skip
    recorder: Any = Recorder(inner)
    assert recorder.other == "another attribute"
    recorder.begin([[1, 2, 3], [4]], 2)
    assert recorder.embed("prefill") == 4
    recorder.gate(1)
    for call in (recorder.hidden(1), recorder.token_embeddings(), recorder.embedding()):
        assert call is state
    assert recorder.token_norms(1) is None
    assert recorder.predict(1, 2, [], Lookahead.GATE) is scores
    assert recorder.head() == [1, 2]
    assert recorder.embed("decode") == 2
    scores[:], ids[:], state[:] = -1, -1, -1
    (batch,) = recorder.trace.batches
    first, second = batch
    assert (first.rows, second.rows) == ((3, 1), (1, 1))
    assert first.gates[1].scores_TE.tolist() == SCORES.tolist()
    assert first.gates[1].ids_TK.tolist() == IDS.tolist()
    assert first.predicted[Lookahead.GATE][1, 2].tolist() == SCORES.tolist()
    assert first.hidden[1].tolist() == first.embedding.tolist() == STATE.tolist()
    assert recorder.trace.embeddings[0].tolist() == STATE.tolist()
    assert (first.norms, first.chosen, second.gates) == ({}, [1, 2], {})
