"""Recordings of real models, cut into texts: hand-made ones, and every available one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.errors import InputError
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.traces.file import TraceFile, open_trace
from moebench.substrate.traces.published import read_published
from moebench.substrate.traces.recipes import recall_of
from moebench.substrate.traces.recordings import (
    PROMPT_TOKENS,
    Recording,
    recorded_header,
    recordings,
    replayable,
    texts,
    workload_of,
    write_texts,
)
from moebench.substrate.traces.replay import routings
from tests.workloads.conftest import data_dir

__all__ = ["data_dir"]

#: A model of the catalogue with few experts.
MODEL = "mixtral-8x7b"
LAYERS, EXPERTS, K = 32, 8, 2


def record(
    folder: Path, lengths: list[int], prefill: int = 0, k: int = K, layers: int = LAYERS,
    experts: int = EXPERTS, **meta: Any,
) -> None:  # fmt: skip
    """A published recording of random routing; each sequence begins with ``prefill`` tokens."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(len(lengths))
    tokens = sum(lengths)
    ids = np.argsort(random.random((tokens, layers, experts)), 2)[..., :k].astype(np.uint8)
    phase = np.concatenate([np.arange(n) >= prefill for n in lengths]).astype(np.uint8)
    seq = np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)
    np.savez(folder / "trace.npz", ids=ids, seq=seq, phase=phase)
    said = {"num_experts": experts, "workload": folder.name.split("__")[1], "ids_order": "by id"}
    (folder / "meta.json").write_text(json.dumps(said | meta))


def cut(tmp_path: Path, lengths: list[int], new_tokens: int, **more: Any) -> list[tuple[int, int]]:
    """Return rows and prompt length of each text of one recording."""
    record(tmp_path / "traces" / f"{MODEL}__a", lengths, **more)
    return [(len(t.rows), t.prompt) for t in texts(recordings(MODEL, tmp_path), new_tokens)]


# --------------------------------------------------------------------------- cutting


def test_a_sequence_is_cut_into_prompts_and_as_many_new_tokens(tmp_path: Path) -> None:
    # 64 + 31 rows: the last of 32 new tokens is not read any more.
    assert cut(tmp_path, [300], 32) == [(95, 64)] * 3
    (recording,) = recordings(MODEL, tmp_path)
    found = texts([recording], 32)
    assert np.array_equal(np.concatenate([t.rows for t in found]), np.arange(285))
    assert [t.passes for t in found] == [32] * 3


def test_a_recorded_prefill_is_the_prompt_of_the_first_text_alone(tmp_path: Path) -> None:
    assert cut(tmp_path, [300], 11, prefill=100) == [(110, 100), (74, 64), (74, 64)]


def test_a_text_that_was_read_in_one_pass_has_a_prompt_all_the_same(tmp_path: Path) -> None:
    assert cut(tmp_path, [100], 11, prefill=100) == [(74, 64)]


def test_a_short_sequence_is_one_shorter_text_or_none(tmp_path: Path) -> None:
    assert cut(tmp_path, [70, 65, 64], 32) == [(70, 64), (65, 64)]


def test_a_sequence_ends_where_it_loops(tmp_path: Path) -> None:
    loops = [{"sequence": 0, "from_token": 80}, {"sequence": 2, "from_token": 0}]
    assert cut(tmp_path, [200, 95, 200], 32, loops=loops) == [(80, 64), (95, 64)]


def test_recordings_take_turns_and_half_of_their_texts_are_left_to_learn_from(
    tmp_path: Path,
) -> None:
    record(tmp_path / "traces" / f"{MODEL}__b", [195])
    record(tmp_path / "traces" / f"{MODEL}-instruct__a", [300])
    found = texts(recordings(MODEL, tmp_path), 32)
    assert [t.recording.trace.header.workload for t in found] == ["a", "b", "a", "b", "a"]
    assert workload_of(found) == "a+b"
    assert [replayable(found[:n]) for n in range(1, 6)] == [1, 1, 2, 2, 3]


@given(
    length=st.integers(0, 400), prefill=st.integers(0, 400), end=st.integers(0, 400),
    new_tokens=st.integers(1, 200),
)  # fmt: skip
def test_texts_follow_each_other_and_hold_a_decoded_token(
    length: int, prefill: int, end: int, new_tokens: int
) -> None:
    length, prefill = max(1, length), min(prefill, length)
    arrays = {
        "ids": np.zeros((length, 1, 1), np.uint8), "sequence": np.zeros(length, int),
        "position": np.arange(length), "phase": np.arange(length) >= prefill,
        "chosen": np.full(length, -1),
    }  # fmt: skip
    header = {"model": "m", "workload": "w", "num_moe_layers": 1, "num_experts": 2, "top_k": 1}
    from moebench.substrate.traces.file import Header

    trace = TraceFile(Path("m__w"), Header(**header), arrays)
    end = min(end, length)
    try:
        found = texts([Recording(trace, (end,))], new_tokens)
    except InputError:
        prompt = prefill if 0 < prefill < length else PROMPT_TOKENS
        assert end <= prompt or (new_tokens == 1 and end < prompt)
        return
    rows = np.concatenate([t.rows for t in found])
    assert np.array_equal(rows, np.arange(len(rows)))
    assert len(rows) <= end
    assert all(1 <= t.passes <= new_tokens for t in found)
    assert len({t.passes for t in found}) == 1, "only a sequence's single text may be shorter"


# --------------------------------------------------------------------------- whose


def test_a_recording_of_other_layers_or_experts_is_not_the_models(tmp_path: Path) -> None:
    record(tmp_path / "traces" / f"{MODEL}__small", [100], layers=3)
    record(tmp_path / "traces" / f"{MODEL}__wide", [100], experts=16)
    record(tmp_path / "traces" / "olmoe-1b-7b__a", [100], layers=16, experts=64, k=8)
    with pytest.raises(InputError, match=r"no recorded routing of mixtral-8x7b in .*traces"):
        recordings(MODEL, tmp_path)
    (found,) = recordings("olmoe-1b-7b", tmp_path)
    assert found.trace.header.top_k == 8


def test_a_model_without_a_recording_is_told_who_has_one(tmp_path: Path) -> None:
    record(tmp_path / "traces" / f"{MODEL}__a", [100])
    with pytest.raises(InputError, match=r"there is of: mixtral-8x7b\); --routing drawn") as error:
        recordings("xverse-moe-a4.2b", tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="there is of: no model"):
        recordings(MODEL, tmp_path / "nowhere")


def test_of_recordings_with_different_top_k_the_largest_are_taken(tmp_path: Path) -> None:
    record(tmp_path / "traces" / f"{MODEL}-k1__a", [100], k=1)
    record(tmp_path / "traces" / f"{MODEL}__b", [100])
    assert [r.trace.header.top_k for r in recordings(MODEL, tmp_path)] == [2]


def test_recordings_that_hold_no_text_are_one_line(tmp_path: Path) -> None:
    record(tmp_path / "traces" / f"{MODEL}__a", [64])
    with pytest.raises(InputError, match=f"{MODEL}__a: no sequence is longer than a prompt of 64"):
        texts(recordings(MODEL, tmp_path), 8)


# --------------------------------------------------------------------------- as a trace


def test_texts_as_a_trace_have_scores_and_predictions_and_say_how(tmp_path: Path) -> None:
    record(tmp_path / "traces" / f"{MODEL}__a", [200], notes="an early checkpoint", source="them")
    listed = texts(recordings(MODEL, tmp_path), 8)
    write_texts(MODEL, listed, 0, tmp_path / "out")
    trace = open_trace(tmp_path / "out")
    assert [len(rows) for rows in trace.sequences] == [71, 71]
    assert trace.prompts == [64, 64]
    source = read_published(tmp_path / "traces" / f"{MODEL}__a").arrays["ids"]
    assert np.array_equal(trace.ids_TLK, source[:142])
    assert trace.scores_TLE is not None
    own = np.take_along_axis(trace.scores_TLE, trace.ids_TLK.astype(int), 2)
    assert (own.min(2) >= np.sort(trace.scores_TLE, 2)[..., -K]).all(), "what was chosen leads"
    header = trace.header
    assert set(header.predictions) == {"gate", "normed", "layer"}
    assert all("recall 0.84" in p.made for p in header.predictions.values())
    assert header.scores is not None
    assert "reconstructed" in header.scores
    assert "a: an early checkpoint" in header.notes
    assert header.source["a"]["source"] == "them"


def test_drawn_predictions_have_the_familys_recall(tmp_path: Path) -> None:
    """Although scores by id tell neither the chosen experts apart nor the others."""
    record(tmp_path / "traces" / f"{MODEL}__a", [400])
    write_texts(MODEL, texts(recordings(MODEL, tmp_path), 300), 0, tmp_path / "out")
    (routing,) = routings(open_trace(tmp_path / "out"))
    guess = routing.predicted_TLE["gate"][64:, :-1]
    named = np.argsort(-guess, 2)[..., :K]
    truth = routing.ids_TLK[64:, 1:]
    right = (truth[..., :, None] == named[..., None, :]).any(-1).mean()
    assert right == pytest.approx(recall_of(MODEL), abs=0.01)


def test_one_seed_is_one_trace(tmp_path: Path) -> None:
    record(tmp_path / "traces" / f"{MODEL}__a", [100])
    listed = texts(recordings(MODEL, tmp_path), 8)
    hashes = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_texts(MODEL, listed, seed, tmp_path / name)
        hashes.append(open_trace(tmp_path / name).hash)
    assert hashes[0] == hashes[1] != hashes[2]


# --------------------------------------------------------------------------- the real ones


@pytest.mark.parametrize(
    ("model", "top_k", "workload", "held"),
    [
        # 512, 130, 171 and 359 tokens before the loops, at 64 + 31 each; dialogue loops at once.
        ("olmoe-1b-7b", 8, "math+math-run2+prose+prose-run2", 5 + 1 + 1 + 3),
        # 135 + 31 of 216 tokens, whose other 50 are no text; 2 · 95 of 252.
        ("mixtral-8x7b", 2, "humaneval", 1 + 2),
        # 28 + 31 of 156, and 95 more.
        ("qwen3-30b-a3b", 6, "explain", 2),
    ],
)
def test_shipped_recordings_yield_the_expected_texts(
    data_dir: Path, model: str, top_k: int, workload: str, held: int
) -> None:
    found = recordings(model, data_dir)
    listed = texts(found, 32)
    shape = model_shape(model)
    assert {(r.trace.header.num_experts, r.trace.header.top_k) for r in found} == {
        (shape.num_experts, top_k)
    }
    assert workload_of(listed) == workload
    assert len(listed) == held


def test_recordings_keep_a_common_order_of_ids_and_else_order_them_by_id(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    record(folder / f"{MODEL}__a", [200], ids_order="by score")
    record(folder / f"{MODEL}__b", [200, 200], ids_order="by score")
    assert recorded_header(MODEL, texts(recordings(MODEL, tmp_path), 8)).ids_order == "score"
    record(folder / f"{MODEL}__c", [200, 200, 200], ids_order="by id")
    header = recorded_header(MODEL, texts(recordings(MODEL, tmp_path), 8))
    assert header.workload == "a+b+c"
    assert header.ids_order == "id"
