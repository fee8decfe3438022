"""What an instrumented run notes: tokens of one answer after the other."""

import numpy as np

from moebench.harness.reproduce.smoe import instrumented


def test_the_tokens_of_each_batch_are_a_sequence_of_their_own() -> None:
    """Two tokens of two layers, then one: gate scores of three experts and the chosen one."""

    def layer(*scores: float) -> tuple[np.ndarray, np.ndarray]:
        return np.array(scores), np.array([int(np.argmax(scores))])

    tokens = [[layer(0.7, 0.2, 0.1), layer(0.1, 0.1, 0.8)], [layer(0.2, 0.5, 0.3)] * 2]
    first = instrumented._sequence(tokens)
    assert first.ids_TLK.tolist() == [[[0], [2]], [[1], [1]]]
    assert first.scores_TLE is not None
    assert first.scores_TLE[0].tolist() == [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]
    assert first.prefill == 0
    assert tokens == []
    tokens.append([layer(0.3, 0.3, 0.4), layer(0.6, 0.4, 0.0)])
    second = instrumented._sequence(tokens)
    assert second.ids_TLK.tolist() == [[[2], [0]]]
