"""Reading a text routes its tokens as decoding does; generation stops and reports margins."""

from pathlib import Path

import numpy as np
import pytest
import torch

from moebench.substrate.analysis.statistics import prediction_by_layer
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.resident import ResidentExperts
from moebench.substrate.traces.observe import margins, read, write
from moebench.substrate.traces.passes import Recorder
from tests.substrate.models.checkpoints import make_checkpoint

PROMPTS = [[5, 9, 2, 40, 7], [11, 3]]


@pytest.fixture(params=["mixtral", "deepseek"])
def decoder(request: pytest.FixtureRequest, tmp_path: Path) -> Decoder:
    checkpoint = Checkpoint(make_checkpoint(tmp_path / "model", request.param))
    experts = ResidentExperts(checkpoint, torch.float32)
    return Decoder(checkpoint.shape, checkpoint.common(torch.float32), experts)


def test_reading_routes_as_decoding_does(decoder: Decoder) -> None:
    recorder = Recorder(decoder)
    written = write(recorder, PROMPTS, 6, stop=None)  # type: ignore[arg-type]
    passes = recorder.trace.batches[0]
    texts = [prompt + tokens for prompt, tokens in zip(PROMPTS, written, strict=True)]
    routings = read(decoder, texts, prefill=2)
    starts = np.cumsum([0, *map(len, PROMPTS)])
    for b, (prompt, routing) in enumerate(zip(PROMPTS, routings, strict=True)):
        assert routing.prefill == 2
        assert routing.ids_TLK.shape[:2] == (len(texts[b]), len(decoder.shape.moe_layers))
        for at, layer in enumerate(decoder.shape.moe_layers):
            gates = [seen.gates[layer].ids_TK for seen in passes]
            decoded = [gates[0][starts[b] : starts[b + 1]], *(ids[b : b + 1] for ids in gates[1:])]
            # The last token was chosen but never fed.
            np.testing.assert_array_equal(
                routing.ids_TLK[: len(prompt) + 5, at], np.concatenate(decoded)
            )


def test_states_and_embeddings_of_each_text_are_kept_where_asked(decoder: Decoder) -> None:
    """In half precision; a prompt's embedding is the mean of those of its first two tokens."""
    plain = read(decoder, PROMPTS, prefill=2)
    whole = read(decoder, PROMPTS, prefill=2, states=True, embeddings=True)
    table = decoder._embedding.float().numpy()
    for text, without, found in zip(PROMPTS, plain, whole, strict=True):
        assert without.hidden_TLH is without.embedding_H is without.embedding_TH is None
        assert found.embedding_TH is not None
        assert found.embedding_H is not None
        assert found.hidden_TLH is not None
        assert found.embedding_TH.dtype == found.embedding_H.dtype == np.float16
        np.testing.assert_array_equal(found.embedding_TH, table[text].astype(np.float16))
        np.testing.assert_allclose(found.embedding_H, table[text[:2]].mean(axis=0), rtol=2e-3)
        width = decoder.shape.hidden_size
        assert found.hidden_TLH.shape == (len(text), len(decoder.shape.moe_layers), width)
        assert found.hidden_TLH.dtype == np.float16
        # Gates read what they read without being watched.
        np.testing.assert_array_equal(found.ids_TLK, without.ids_TLK)
        np.testing.assert_array_equal(found.scores_TLE, without.scores_TLE)
        assert found.predicted_TLE.keys() == without.predicted_TLE.keys()


def test_predictions_are_for_the_next_layer_only(decoder: Decoder) -> None:
    (routing,) = read(decoder, [PROMPTS[0]], prefill=1)
    assert set(routing.predicted_TLE) == {"gate", "normed", "layer"}
    for kind, predicted in routing.predicted_TLE.items():
        assert np.isnan(predicted[:, -1]).all()
        assert not np.isnan(predicted[:, :-1]).any()
        shares = prediction_by_layer([routing], kind)
        assert np.isnan(shares[0])
        assert np.all((shares[1:] >= 0) & (shares[1:] <= 1))


def test_writing_is_greedy_and_ends_before_the_stop(decoder: Decoder) -> None:
    written = write(decoder, PROMPTS, 6, stop=None)
    for prompt, tokens in zip(PROMPTS, written, strict=True):
        logits = decoder.full_logits([prompt + tokens])[0]
        assert logits.argmax(-1).tolist()[len(prompt) - 1 : -1] == tokens
    stop = written[0][3]
    stopped = write(decoder, PROMPTS, 6, stop=stop)
    for whole, cut in zip(written, stopped, strict=True):
        assert cut == (whole[: whole.index(stop)] if stop in whole else whole)


# --------------------------------------------------------------------------- how sure it is


def test_margins_of_the_tokens_that_were_written() -> None:
    steps = [
        torch.tensor([[3.0, 1.0, 2.5], [0.0, 4.0, 1.0]]),
        torch.tensor([[9.0, 1, 2], [1, 1, 0]]),
    ]
    np.testing.assert_allclose(margins(steps, [1, 2]), [0.5, 3.0, 0.0])


def test_writing_goes_on_until_every_text_has_ended(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter([[7, 3], [9, 7], [1, 1], [2, 2]])
    monkeypatch.setattr(decoder, "head", lambda: next(steps))
    assert write(decoder, PROMPTS, 4, stop=7) == [[], [3]]
    assert next(steps) == [1, 1], "both have ended after two steps"
    steps = iter([[7, 3], [9, 8]])
    assert write(decoder, PROMPTS, 2, stop=7) == [[], [3, 8]], "nothing follows an end"
    steps = iter([[7, 3], [9, 8]])
    assert write(decoder, PROMPTS, 2, stop=None) == [[7, 9], [3, 8]]
