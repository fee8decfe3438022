"""What a replay reads of a trace, row by row, from arrays in which sequences are mixed."""

from types import SimpleNamespace

import numpy as np
import pytest

from moebench.substrate.errors import UsageError
from moebench.substrate.terms import Lookahead
from moebench.substrate.traces.replay import Replay, check_topology, routing, routings
from tests.substrate.engine.fakes import small_shape

LAYERS, EXPERTS, K = 3, 5, 2
SHAPE = small_shape(layers=4, experts=EXPERTS, top_k=K, dense_layers=(1,))  # MoE layers 0, 2, 3
DRAWS = np.random.default_rng(0)

#: Three sequences (prompt and decoded rows), of which the third has no prompt.
SIZES = ((2, 3), (1, 2), (0, 4))
ROWS = sum(prompt + decoded for prompt, decoded in SIZES)
ORDER = DRAWS.permutation(ROWS)


def trace(**changed):
    """Return the parts of a trace that replays read; rows of all sequences are mixed."""
    ends = np.cumsum([prompt + decoded for prompt, decoded in SIZES])
    sequences = [ORDER[end - sum(size) : end] for end, size in zip(ends, SIZES, strict=True)]
    decoded = np.zeros(ROWS, bool)
    for rows, (prompt, _) in zip(sequences, SIZES, strict=True):
        decoded[rows[prompt:]] = True
    made = int(decoded.sum())
    predictions = {
        (Lookahead.GATE, ahead): DRAWS.random((made, LAYERS - ahead, EXPERTS)).astype(np.float16)
        for ahead in (1, 2)
    }
    fields = {
        "header": SimpleNamespace(num_moe_layers=LAYERS, num_experts=EXPERTS, top_k=K,
                                  predictions=[Lookahead.GATE, Lookahead.LAYER]),
        "path": "somewhere", "sequences": sequences, "prompts": [prompt for prompt, _ in SIZES],
        "decoded_row": np.cumsum(decoded) - 1,
        "ids_TLK": DRAWS.integers(0, EXPERTS, (ROWS, LAYERS, K)).astype(np.uint8),
        "scores_TLE": DRAWS.random((ROWS, LAYERS, EXPERTS)).astype(np.float16),
        "chosen": np.arange(ROWS) + 100,
        "hidden_TLH": DRAWS.random((ROWS, LAYERS, 4)).astype(np.float16),
        "embedding_SH": DRAWS.random((3, 4)).astype(np.float16),
        "prompt": lambda s: max(SIZES[s][0], 1),
        "passes": lambda s: sum(SIZES[s]) - max(SIZES[s][0], 1) + 1,
        "predicted": lambda kind, ahead=1: predictions.get((kind, ahead)),
    }  # fmt: skip
    return SimpleNamespace(**fields | changed), predictions


def test_passes_are_read_row_by_row() -> None:
    found, predictions = trace()
    replay = Replay(found, SHAPE, 2, 2, 9, {Lookahead.GATE: 3}, hidden=True)
    (batch,) = replay.batches
    assert (batch.prompts, len(batch)) == ((2, 1), 3)  # the shorter one decodes two tokens
    first, second = found.sequences[:2]
    for step, one in enumerate(batch):
        rows = [*first[:2], second[0]] if step == 0 else [first[1 + step], second[step]]
        assert one.rows == ((2, 1) if step == 0 else (1, 1))
        last = [first[1], second[0]] if step == 0 else rows
        assert one.chosen == [row + 100 for row in last]
        assert [*one.gates] == [*one.hidden] == [0, 2, 3]
        for number, layer in enumerate((0, 2, 3)):
            gate = one.gates[layer]
            np.testing.assert_array_equal(gate.ids_TK, found.ids_TLK[rows, number])
            np.testing.assert_array_equal(
                gate.scores_TE, found.scores_TLE[rows, number].astype(np.float32)
            )
            np.testing.assert_array_equal(
                one.hidden[layer], found.hidden_TLH[rows, number].astype(np.float32)
            )
            assert (gate.ids_TK.dtype, gate.scores_TE.dtype) == (np.int64, np.float32)
        if step == 0:
            assert one.predicted == {}
            continue
        made = found.decoded_row[rows]
        wanted = {
            (0, 2): predictions[Lookahead.GATE, 1][made, 0],
            (2, 3): predictions[Lookahead.GATE, 1][made, 1],
            (0, 3): predictions[Lookahead.GATE, 2][made, 0],
        }
        assert one.predicted.keys() == {Lookahead.GATE}
        assert one.predicted[Lookahead.GATE].keys() == wanted.keys()
        for pair, scores in wanted.items():
            np.testing.assert_array_equal(
                one.predicted[Lookahead.GATE][pair], scores.astype(np.float32)
            )


def test_a_sequence_without_a_prompt_begins_with_its_first_token() -> None:
    found, _ = trace()
    batch = Replay(found, SHAPE, 1, 3, 3).batch_at(2)
    assert (batch.prompts, len(batch)) == ((1,), 3)
    assert [one.chosen for one in batch] == [[found.sequences[2][n] + 100] for n in range(3)]
    assert batch[1].predicted == batch[1].hidden == {}  # not asked for
    for step in (-1, 3):
        with pytest.raises(IndexError):
            batch[step]


def test_batches_follow_each_other() -> None:
    found, _ = trace()
    replay = Replay(found, SHAPE, 1, 3, 2)
    assert [batch.prompts for batch in replay.batches] == [(2,), (1,), (1,)]
    assert [len(batch) for batch in replay.batches] == [2, 2, 2]
    assert [*replay.embeddings] == [0, 1, 2]
    pairs = Replay(found, SHAPE, 2, 2, 2).embeddings
    assert [*pairs] == [0]
    np.testing.assert_array_equal(pairs[0], found.embedding_SH[:2].astype(np.float32))
    assert Replay(trace(embedding_SH=None)[0], SHAPE, 1, 3, 2).embeddings == {}


def test_scores_that_were_not_recorded() -> None:
    found, _ = trace(scores_TLE=None, hidden_TLH=None)
    one = Replay(found, SHAPE, 1, 1, 1, hidden=True).batch_at(0)[0]
    assert not one.gates[2].scores_TE.any()
    assert one.gates[2].scores_TE.shape == (2, EXPERTS)
    assert one.hidden == {}
    made = SimpleNamespace(scores=lambda of, rows: of.chosen[rows][:, None, None] * np.ones(
        (1, LAYERS, EXPERTS)))  # fmt: skip
    again = Replay(found, SHAPE, 1, 1, 1, reconstruction=made).batch_at(0)[0]
    assert again.gates[3].scores_TE[:, 1].tolist() == (found.sequences[0][:2] + 100).tolist()


@pytest.mark.parametrize("changed", [{"num_moe_layers": 4}, {"num_experts": 6}, {"top_k": 1}])
def test_another_topology_is_refused(changed: dict) -> None:
    header = SimpleNamespace(**{"num_moe_layers": 3, "num_experts": 5, "top_k": 2} | changed)
    with pytest.raises(UsageError) as caught:
        check_topology("t", header, SHAPE)
    has = f"{header.num_moe_layers} MoE layers of {header.num_experts} experts, top-{header.top_k}"
    assert str(caught.value) == (
        f"t: {has}; the model charged for has 3 MoE layers of 5 experts, top-2; give the --model "
        "that was recorded"
    )


def test_one_sequence_as_statistics_read_it() -> None:
    found, predictions = trace()
    rows, got = found.sequences[0], routing(found, 0, ("hidden", "embedding"))
    np.testing.assert_array_equal(got.ids_TLK, found.ids_TLK[rows])
    np.testing.assert_array_equal(got.scores_TLE, found.scores_TLE[rows])
    np.testing.assert_array_equal(got.hidden_TLH, found.hidden_TLH[rows])
    np.testing.assert_array_equal(got.embedding_H, found.embedding_SH[0])
    assert (got.prefill, got.ids_TLK.dtype, [*got.predicted_TLE]) == (2, np.int64, ["gate"])
    told = got.predicted_TLE["gate"]
    assert np.isnan(told[:2]).all()
    assert np.isnan(told[:, -1]).all()
    made = predictions[Lookahead.GATE, 1][found.decoded_row[rows[2:]]]
    np.testing.assert_array_equal(told[2:, :-1], made)
    plain = routing(trace(scores_TLE=None)[0], 1)
    assert (plain.scores_TLE, plain.hidden_TLH, plain.embedding_H) == (None, None, None)


@pytest.mark.parametrize(
    ("tokens", "count"), [(None, 3), (0, 2), (8, 2), (11, 2), (12, 3), (99, 3)]
)
def test_as_many_sequences_as_fit_but_two_at_least(tokens: int | None, count: int) -> None:
    found = routings(trace()[0], tokens, ("hidden",))
    assert [len(one.ids_TLK) for one in found] == [5, 3, 4][:count]
    assert found[0].hidden_TLH is not None
