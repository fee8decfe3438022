"""Published traces: small hand-made ones, and every available real one."""

import json
from pathlib import Path

import numpy as np
import pytest

from moebench.substrate.errors import InputError
from moebench.substrate.models.shape import GateKind, ModelShape
from moebench.substrate.traces.file import open_trace
from moebench.substrate.traces.passes import TracedModel
from moebench.substrate.traces.published import import_trace, what_it_is_for
from moebench.substrate.traces.replay import Replay, routings
from moebench.substrate.traces.scores import Reconstruction, by_rank, shared_by_order, spread_of
from moebench.systems.options import build
from tests.substrate.engine.fakes import rig
from tests.workloads.conftest import data_dir

__all__ = ["data_dir"]

META = {"num_experts": 6, "workload": "w", "ids_order": "by score", "missing_value": None}

IDS = np.array([[[0, 1], [2, 3]], [[1, 4], [5, 0]], [[3, 2], [1, 2]], [[4, 5], [0, 1]]], np.uint8)


def publish(folder: Path, meta: dict, packed: bool = True, **arrays: np.ndarray) -> Path:
    folder.mkdir()
    n = len(IDS)
    arrays = {"ids": IDS, "seq": np.zeros(n, np.int32), "phase": np.ones(n, np.uint8)} | arrays
    if packed:
        np.savez_compressed(folder / "trace.npz", **arrays)
    else:
        for name, values in arrays.items():
            np.save(folder / f"{name}.npy", values)
    (folder / "meta.json").write_text(json.dumps(META | meta))
    return folder


@pytest.mark.parametrize("packed", [True, False])
def test_rows_come_out_as_published(tmp_path, packed):
    seq, phase = np.array([0, 0, 1, 1], np.int32), np.array([0, 1, 1, 1], np.uint8)
    source = publish(tmp_path / "olmoe__x", {}, packed, seq=seq, phase=phase)
    header = import_trace(source, tmp_path / "out")
    trace = open_trace(tmp_path / "out")
    assert np.array_equal(trace.ids_TLK, IDS)
    assert trace.prompts == [1, 0]
    assert [rows.tolist() for rows in trace.sequences] == [[0, 1], [2, 3]]
    assert trace.arrays["position"].tolist() == [0, 1, 0, 1]
    assert (header.model, header.workload, header.ids_order) == ("olmoe", "w", "score")
    assert trace.scores_TLE is None


def test_a_missing_row_takes_a_later_token_of_its_sequence_else_an_earlier_one(tmp_path):
    ids = IDS.copy()
    ids[0, 1] = ids[1, 0] = ids[3, 0] = 255
    seq = np.array([0, 0, 0, 0], np.int32)
    source = publish(tmp_path / "a__b", {"missing_value": 255}, ids=ids, seq=seq)
    header = import_trace(source, tmp_path / "out")
    found = open_trace(tmp_path / "out").ids_TLK
    assert found[0, 1].tolist() == IDS[1, 1].tolist()
    assert found[1, 0].tolist() == IDS[2, 0].tolist()
    assert found[3, 0].tolist() == IDS[2, 0].tolist()
    assert found[2].tolist() == IDS[2].tolist()
    assert any("37.50%" in note for note in header.notes), "3 of 8 rows"


def test_255_is_an_expert_where_nothing_is_missing(tmp_path):
    ids = IDS.copy()
    ids[0, 0] = (255, 7)
    source = publish(tmp_path / "a__b", {"num_experts": 256}, ids=ids)
    import_trace(source, tmp_path / "out")
    assert open_trace(tmp_path / "out").ids_TLK[0, 0].tolist() == [255, 7]


def test_a_text_that_was_read_can_be_taken_as_decoded(tmp_path):
    source = publish(tmp_path / "a__b", {}, phase=np.zeros(4, np.uint8))
    import_trace(source, tmp_path / "out", prompt_tokens=1)
    trace = open_trace(tmp_path / "out")
    assert (trace.prompts, trace.passes(0)) == ([1], 4)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"seq": np.zeros(3, np.int32)}, "seq is"),
        ({"seq": np.array([1, 0, 0, 0], np.int32)}, "seq decreases"),
        ({"ids": IDS[:, :, 0]}, "ids is"),
        ({"ids": IDS + 3}, "names expert 6 of 6"),
        ({"ids": np.zeros_like(IDS)}, "same expert twice"),
        ({"scores": np.zeros((4, 2, 1), np.float16)}, "scores is"),
        (
            {"scores": np.full((4, 2, 2), -0.5, np.float16)},
            "scores is -0.5 .*allowed: numbers from 0",
        ),
        ({"ids": IDS[:0], "seq": np.zeros(0, np.int32)}, "no token"),
    ],
)
def test_inconsistent_arrays_are_refused_in_one_line(tmp_path, arrays, says):
    source = publish(tmp_path / "a__b", {}, **arrays)
    with pytest.raises(InputError, match=says) as caught:
        import_trace(source, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_what_a_trace_cannot_be_used_for_is_said(tmp_path):
    import_trace(publish(tmp_path / "one", {}), tmp_path / "a")
    (only,) = what_it_is_for(open_trace(tmp_path / "a"))
    assert only.startswith("one sequence: systems that learn have none left")
    two = {"seq": np.array([0, 0, 1, 1], np.int32), "phase": np.array([0, 1, 0, 1], np.uint8)}
    import_trace(publish(tmp_path / "two", {}, **two), tmp_path / "b")
    assert what_it_is_for(open_trace(tmp_path / "b")) == []
    read = two | {"phase": np.zeros(4, np.uint8)}
    import_trace(publish(tmp_path / "read", {}, **read), tmp_path / "c")
    (nothing,) = what_it_is_for(open_trace(tmp_path / "c"))
    assert nothing.startswith("no token is decoded")


def test_totals_are_no_trace(tmp_path):
    (tmp_path / "popularity.json").write_text("{}")
    with pytest.raises(InputError, match="totals by expert only"):
        import_trace(tmp_path, tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", b"no zip"])
def test_a_broken_archive_is_one_line(tmp_path, content):
    source = publish(tmp_path / "a__b", {})
    (source / "trace.npz").write_bytes(content)
    with pytest.raises(InputError, match="cannot be read"):
        import_trace(source, tmp_path / "out")


# ----------------------------------------------------------------------------- scores by rank


def test_scores_by_rank_are_the_published_skews():
    """Mean share of the applied weight by rank, as measured on the real traces."""
    for model, experts, published in (
        ("deepseek-v2-lite", 64, (0.329, 0.199, 0.152, 0.124, 0.105, 0.092)),
        ("gpt-oss-20b", 32, (0.352, 0.264, 0.210, 0.174)),
        ("mixtral-8x7b", 8, (0.716, 0.284)),
        ("qwen3-30b-a3b", 128, (0.272, 0.200, 0.164, 0.139, 0.120, 0.105)),
        ("gemma-4-26b-a4b", 128, (0.317, 0.199, 0.152, 0.126, 0.109, 0.097)),
    ):
        shares = by_rank(experts, spread_of(model))
        assert shares.sum() == pytest.approx(1)
        top = shares[: len(published)]
        assert np.allclose(top / top.sum(), published, atol=0.035), model


def test_ranks_that_an_order_does_not_tell_apart_share():
    ranked = np.array([8.0, 6, 4, 2, 1, 1, 1, 1])
    assert shared_by_order(ranked, "score").tolist() == ranked.tolist()
    assert shared_by_order(ranked, "rank buckets").tolist() == [7, 7, 3, 3, 1, 1, 1, 1]
    assert shared_by_order(ranked, "id").tolist() == [3.0] * 8


@pytest.mark.parametrize("scores", [None, "chosen", "all"])
def test_reconstructed_scores_keep_the_choice_on_top(tmp_path, scores):
    values = np.tile(np.array([0.7, 0.3], np.float16), (4, 2, 1))
    arrays = {} if scores is None else {"scores": values / (1 if scores == "chosen" else 2)}
    import_trace(publish(tmp_path / "a__b", {}, **arrays), tmp_path / "out")
    trace = open_trace(tmp_path / "out")
    found = Reconstruction(1.0).scores(trace, np.arange(4))
    chosen = np.take_along_axis(found, IDS.astype(int), 2)
    rest = found.sum(2) - chosen.sum(2)
    assert (chosen.min(2) >= (found * (found != chosen.max(2)[..., None])).max(2) - 1e-6).all()
    assert np.allclose(np.sort(found, 2)[..., :-2].std(2), 0, atol=1e-6), "the rest share equally"
    if scores == "all":
        assert np.allclose(chosen, (0.35, 0.15), atol=1e-3)
        assert np.allclose(rest, 0.5, atol=2e-3)
    elif scores == "chosen":
        assert np.allclose(chosen[..., 0] / chosen[..., 1], 0.7 / 0.3, atol=1e-2)


def test_known_candidates_rank_above_the_rest(tmp_path):
    more = np.array([[[5], [4]], [[0], [1]], [[0], [0]], [[0], [2]]], np.uint8)
    source = publish(tmp_path / "a__b", {}, candidates=np.concatenate([IDS, more], 2))
    import_trace(source, tmp_path / "out")
    found = Reconstruction(1.0).scores(open_trace(tmp_path / "out"), np.arange(4))
    third = np.take_along_axis(found, more.astype(int), 2)[..., 0]
    assert np.allclose(third, np.sort(found, 2)[..., -3])
    assert (third > np.sort(found, 2)[..., 0]).all()


def test_nobody_who_was_not_chosen_is_above_the_least_of_the_chosen(tmp_path):
    published = np.broadcast_to(np.array([0.95, 0.05], np.float32), IDS.shape)
    source = publish(tmp_path / "a__b", {}, scores=published)
    import_trace(source, tmp_path / "out")
    found = Reconstruction(1.0).scores(open_trace(tmp_path / "out"), np.arange(4))
    chosen = np.take_along_axis(found, IDS.astype(int), 2)
    share = float(by_rank(6, 1.0)[:2].sum())
    assert np.allclose(chosen, published * share, atol=1e-6)
    others = np.sort(found, 2)[..., :-1]  # the second of the chosen, and those that were not
    assert np.allclose(others, 0.05 * share, atol=1e-6)


# ----------------------------------------------------------------------------- the real ones


def shape_of(trace) -> ModelShape:
    h = trace.header
    return ModelShape(
        family="any", num_layers=h.num_moe_layers, hidden_size=8, vocab_size=8, num_heads=1,
        num_kv_heads=1, head_dim=8, num_experts=h.num_experts, top_k=h.top_k, expert_width=8,
        gate=GateKind.SOFTMAX_TOPK,
    )  # fmt: skip


def test_every_real_trace_imports_and_replays(data_dir, tmp_path):
    folders = sorted(f for f in (data_dir / "traces").iterdir() if f.is_dir())
    rows = [f for f in folders if (f / "meta.json").exists()]
    assert len(rows) == 25
    for folder in folders:
        out = tmp_path / folder.name
        if folder not in rows:
            with pytest.raises(InputError, match="totals by expert only"):
                import_trace(folder, out)
            continue
        import_trace(folder, out)
        trace, meta = open_trace(out), json.loads((folder / "meta.json").read_text())
        assert len(trace.sequences) == meta["sequences"], folder
        assert [len(r) for r in trace.sequences] == meta["sequence_tokens"]
        assert sum(trace.prompts) == meta["prefill_tokens"]
        assert routings(trace, 64)[0].ids_TLK.shape[1:] == trace.ids_TLK.shape[1:]
        shape = shape_of(trace)
        replay = Replay(trace, shape, 1, 1, 3, reconstruction=Reconstruction(1.0))
        every = shape.num_layers * shape.num_experts
        made = rig(build("moe-ondemand"), TracedModel(replay), slots=every // 4)
        passes = min(3, trace.passes(0))
        made.engine.generate([[0] * trace.prompt(0)], passes)
        decode = made.counts["decode"]
        assert decode.active == (passes - 1) * shape.num_layers * shape.top_k
