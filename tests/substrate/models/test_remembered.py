"""Remembered prefills, with a decoder that notes what it is asked."""

from typing import Any, cast

import numpy as np
import pytest

from moebench.substrate.errors import UsageError
from moebench.substrate.models.remembered import Prefills, RememberedPrefills
from moebench.substrate.terms import Gate, Lookahead

SCORES = np.array([[0.1, 0.9, 0.0], [0.7, 0.2, 0.1]])
IDS = np.array([[1, 0], [0, 1]])


class FakeDecoder:
    """Notes its calls; it answers gates and states of two rows, which it changes afterwards."""

    shape = "shape"

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.scores, self.ids, self.state = SCORES.copy(), IDS.copy(), np.array([[3.0, 4.0]])

    def __getattr__(self, name: str) -> Any:
        def called(*given: Any) -> Any:
            self.calls.append((name, *given))
            return f"{name} of the decoder"

        return called

    def embed(self, phase: str) -> int:
        self.calls.append(("embed", phase))
        return 7

    def gate(self, layer: int) -> Gate:
        self.calls.append(("gate", layer))
        return Gate(self.scores, self.ids)

    def hidden(self, layer: int) -> np.ndarray:
        return self.state

    def dispatch(self, layer: int, ids: Any, weigh_as: Any) -> dict[int, int]:
        self.calls.append(("dispatch", layer))
        return {9: 9}

    def head(self) -> list[int]:
        return [5, 6]

    def prefilled(self) -> str:
        return "a cache"

    def take_prefill(self, left: str) -> list[int]:
        self.calls.append(("take_prefill", left))
        return [5, 6]


def model(decoder: FakeDecoder, prefills: Prefills) -> RememberedPrefills:
    return RememberedPrefills(cast(Any, decoder), prefills)


@pytest.fixture
def known() -> tuple[FakeDecoder, RememberedPrefills, Prefills]:
    """Return a decoder and a model that has computed the prefill of two prompts."""
    decoder, prefills = FakeDecoder(), cast(Prefills, {})
    made = model(decoder, prefills)
    made.begin([[1, 2], [3]], 4, [[8]])
    assert made.embed("prefill") == 7
    made.attend(0)
    made.gate(0)
    assert made.dispatch(0, IDS, IDS) == {9: 9}
    made.compute(0, [1], 2)
    made.combine(0)
    assert made.head() == [5, 6]
    decoder.scores[:], decoder.state[:] = -1, -1
    return decoder, made, prefills


def test_a_prefill_is_computed_once_and_kept_as_it_was(known: Any) -> None:
    decoder, _, prefills = known
    assert decoder.calls[:3] == [
        ("begin", [[1, 2], [3]], 4, [[8]]), ("embed", "prefill"), ("attend", 0),
    ]  # fmt: skip
    assert [name for name, *_ in decoder.calls[3:]] == ["gate", "dispatch", "compute", "combine"]
    assert list(prefills) == [((1, 2), (3,))]
    kept = prefills[(1, 2), (3,)]
    assert kept.gates[0].scores_TE.tolist() == SCORES.tolist()
    assert kept.states[0].tolist() == [[3, 4]]
    assert kept.left == "a cache"


def test_a_known_prefill_computes_nothing(known: Any) -> None:
    _, _, prefills = known
    decoder = FakeDecoder()
    again = model(decoder, prefills)
    assert again.shape == "shape"
    again.begin([(1, 2), (3,)], 4)
    decoder.calls.clear()
    assert again.embed("prefill") == 3, "the prompts' tokens"
    again.attend(0)
    gate = again.gate(0)
    assert gate.scores_TE.tolist() == SCORES.tolist()
    assert (again.hidden(0).tolist(), again.token_norms(0).tolist()) == ([[3, 4]], [5])
    assert again.dispatch(0, IDS, IDS) == {0: 2, 1: 2}
    again.compute(0, [0])
    again.compute_on_host(0, [1])
    again.shared(0)
    again.combine(0)
    again.dense(0)
    with pytest.raises(UsageError, match="a remembered prefill has no embeddings; run each"):
        again.token_embeddings()
    assert decoder.calls == []
    assert again.head() == [5, 6]
    assert decoder.calls == [("take_prefill", "a cache")]


def test_decode_is_the_decoders_own(known: Any) -> None:
    decoder, made, prefills = known
    before = dict(prefills)
    decoder.calls.clear()
    assert made.embed("decode") == 7
    made.attend(1)
    made.gate(1)
    made.dispatch(1, IDS, IDS[::-1])
    made.weigh(1, SCORES)
    made.compute(1, [0], 1)
    made.compute_on_host(1, [2], True, 3)
    for call in (made.shared, made.combine, made.dense):
        call(1)
    made.defer(1, [4])
    made.route_ahead(2, IDS)
    assert made.predict(1, 2, [0], Lookahead.NORMED) == "predict of the decoder"
    assert made.token_embeddings() == "token_embeddings of the decoder"
    assert made.embedding() == "embedding of the decoder"
    assert [name for name, *_ in decoder.calls] == [
        "embed", "attend", "gate", "dispatch", "weigh", "compute", "compute_on_host", "shared",
        "combine", "dense", "defer", "route_ahead", "predict", "token_embeddings", "embedding",
    ]  # fmt: skip
    given = {name: rest for name, *rest in decoder.calls}
    assert given["compute"] == [1, [0], 1]
    assert given["compute_on_host"] == [1, [2], True, 3]
    assert given["predict"] == [1, 2, [0], Lookahead.NORMED]
    assert given["defer"] == [1, [4]]
    assert made.head() == [5, 6]
    assert prefills == before, "decode is not remembered"


def test_a_prefill_that_is_not_exact_is_refused(known: Any) -> None:
    _, _, prefills = known
    fresh, again = model(FakeDecoder(), cast(Prefills, {})), model(FakeDecoder(), prefills)
    for made in (fresh, again):
        made.begin([[1, 2], [3]], 4)
        made.embed("prefill")
        made.gate(0)
        refusing = [
            lambda made=made: made.dispatch(0, IDS[::-1], IDS),
            lambda made=made: made.dispatch(0, IDS, IDS[::-1]),
            lambda made=made: made.weigh(0, SCORES), lambda made=made: made.defer(0, [1]),
            lambda made=made: made.predict(0, 1, [], Lookahead.NORMED),
        ]  # fmt: skip
        for call in refusing:
            with pytest.raises(UsageError, match="only exact prefills can be remembered; run each"):
                call()
