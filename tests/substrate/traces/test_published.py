"""Published traces: small hand-made ones, and every available real one."""

import json
from pathlib import Path

import numpy as np
import pytest

from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.models.shape import GateKind, ModelShape
from moebench.substrate.traces.file import open_trace
from moebench.substrate.traces.passes import TracedModel
from moebench.substrate.traces.published import (
    import_trace,
    model_of,
    read_published,
    what_it_is_for,
)
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
        ({"seq": np.array([1, 0, 0, 0], np.int32)}, "seq decreases to 0 at token 1; sequences"),
        ({"seq": np.array([0, 0, 2, 1], np.int32)}, "seq decreases to 1 at token 3; sequences"),
        (
            {"seq": np.zeros(4, np.int32), "phase": np.array([0, 1, 1, 0], np.uint8)},
            "phase goes from 1, decode, back to 0, prefill, at token 3 of one sequence",
        ),
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


SCORES = np.full(IDS.shape, 0.5, np.float32)
MORE = np.concatenate(
    [IDS, np.array([[[5], [4]], [[0], [1]], [[0], [0]], [[0], [2]]], np.uint8)], 2
)


@pytest.mark.parametrize(
    ("meta", "arrays", "says"),
    [
        ({"num_experts": 1}, {}, "ids chooses 2 of num_experts 1"),
        ({"num_experts": 0}, {}, r"meta\.json: num_experts is 0; allowed: a whole number from 1"),
        ({"num_experts": 65_537}, {}, "num_experts is 65537; .* to 65536"),
        ({"missing_value": 254}, {}, r"missing_value is 254; allowed: null or 255"),
        ({"loops": {"a": 1}}, {}, "loops is .*; allowed: a list of {sequence, from_token, ...}"),
        ({"loops": [3]}, {}, "loops is .*; allowed: a list"),
        ({"loops": [{"sequence": 1, "from_token": 0}]}, {}, "loops: sequence is 1; .* from 0 to 0"),
        ({"loops": [{"sequence": 0, "from_token": 5}]}, {}, "from_token is 5; .* from 0 to 4"),
        ({}, {"phase": np.array([0, 1, 0, 1], np.uint8)},
         "phase goes from 1, decode, back to 0, prefill, at token 2 of one sequence"),
        ({}, {"phase": np.full(4, 2, np.uint8)}, "phase"),
        ({}, {"phase": np.ones(4)}, r"phase is float64 \(4,\); allowed: whole numbers in 1 dim"),
        ({}, {"seq": np.array([0, 2, 1, 1], np.int32)}, "seq decreases to 1 at token 2; sequences"),
        ({}, {"seq": np.full(4, -1, np.int32)}, "seq"),
        ({}, {"scores": SCORES.astype(np.int32)}, "scores is int32; allowed: float"),
        ({}, {"candidates": MORE.astype(np.float32)}, "candidates is float32; allowed: integers"),
        ({}, {"candidates": MORE[:, :, 0]}, r"candidates is \(4, 2\) beside ids \(4, 2, 2\)"),
        ({}, {"candidates": MORE[:3]}, r"candidates is \(3, 2, 3\) beside"),
        ({}, {"candidates": np.where(MORE == 4, 5, MORE)}, "candidates"),
        ({}, {"candidates": MORE[:, :, 1:]},
         "candidates lacks the chosen expert 0 at token 0, layer 0; allowed: the best-ranked"),
        ({}, {"ids": IDS[:, :0]}, r"holds no token: ids is \(4, 0, 2\)"),
        ({}, {"ids": IDS[:, :, :0]}, r"holds no token: ids is \(4, 2, 0\)"),
    ],
)  # fmt: skip
def test_what_does_not_belong_together_is_refused(tmp_path, meta, arrays, says):
    with pytest.raises(InputError, match=says) as caught:
        read_published(publish(tmp_path / "a__b", meta, **arrays))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["ids", "seq", "phase"])
def test_required_arrays_are_named(tmp_path, name):
    source = publish(tmp_path / "a__b", {}, packed=False)
    (source / f"{name}.npy").unlink()
    with pytest.raises(InputError, match=f"has no array {name}; an import needs ids, seq and"):
        read_published(source)
    (source / "meta.json").write_text("{}")
    with pytest.raises(InputError, match="does not say num_experts"):
        read_published(source)
    with pytest.raises(InputError, match=r"no such folder; give one that holds meta\.json"):
        read_published(tmp_path / "absent")


def test_a_header_says_where_a_trace_comes_from(tmp_path):
    meta = {
        "ids_order": "by rank bucket of 2", "source": "s", "licence": "l", "precision": "p",
        "sampling": "t", "other": 1, "notes": "n", "model": "Own Name", "native_top_k": 4,
        "loops": [{"sequence": 1, "from_token": 4}, {"sequence": 0, "from_token": 0}],
    }  # fmt: skip
    seq, phase = np.array([3, 3, 9, 9], np.int32), np.zeros(4, np.uint8)
    source = publish(tmp_path / "olmoe__x__y-k2", meta, seq=seq, phase=phase, candidates=MORE,
                     scores=SCORES)  # fmt: skip
    header, arrays, found = read_published(source, prompt_tokens=1)
    assert found["other"] == 1
    assert (header.model, header.workload, header.top_k) == ("olmoe", "w", 2)
    assert (header.num_moe_layers, header.num_experts) == (2, 6)
    assert header.ids_order == "rank buckets"
    assert header.source == {
        "source": "s", "licence": "l", "precision": "p", "sampling": "t",
        "top_scores": "of the chosen experts", "described_as": "Own Name",
    }  # fmt: skip
    assert header.notes == [
        "n", "the first 1 tokens of each sequence are taken as its prompt",
        "the model ran with top-2 instead of 4",
    ]  # fmt: skip
    assert {name: array.tolist() for name, array in arrays.items() if array.ndim == 1} == {
        "sequence": [3, 3, 9, 9], "position": [0, 1, 0, 1], "phase": [0, 1, 0, 1],
        "chosen": [-1] * 4,
    }  # fmt: skip
    np.testing.assert_array_equal(arrays["candidates"], MORE)
    np.testing.assert_array_equal(arrays["top_scores"], SCORES)
    with pytest.raises(
        UsageError, match=r"--prompt-tokens 2: the longest .* has 2 tokens, .* 1 to 1"
    ):
        read_published(source, prompt_tokens=2)
    plain, _, _ = read_published(publish(tmp_path / "b-k3", {"ids_order": "", "workload": 3},
                                         scores=SCORES * 0.9), "named")  # fmt: skip
    assert (plain.model, plain.workload, plain.ids_order) == ("named", "3", "id")
    assert plain.source == {"top_scores": "of all experts", "described_as": None}
    assert [model_of(Path(n)) for n in ("olmoe-1b__x", "olmoe-k8", "olmoe-k8__x")] == [
        "olmoe-1b", "olmoe", "olmoe",
    ]  # fmt: skip


def test_missing_rows_take_a_neighbours_in_every_array(tmp_path):
    ids, scores, more = IDS.copy(), SCORES.copy(), MORE.copy()
    ids[1, 0] = more[1, 0] = 255
    scores[2, 0] = 0.25
    source = publish(tmp_path / "a__b", {"missing_value": 255}, ids=ids, scores=scores,
                     candidates=more)  # fmt: skip
    header, arrays, _ = read_published(source)
    assert arrays["ids"][1, 0].tolist() == IDS[2, 0].tolist()
    assert arrays["candidates"][1, 0].tolist() == MORE[2, 0].tolist()
    assert arrays["top_scores"][1, 0].tolist() == [0.25, 0.25]
    assert header.notes == [
        "12.50% of the rows (token, layer) are missing in the source and take the ids of a "
        "neighbouring token"
    ]
    ids[:, 0] = 255
    with pytest.raises(InputError, match="sequence 0 has no row at layer 0: ids is missing"):
        read_published(publish(tmp_path / "c", {"missing_value": 255}, ids=ids))


def test_a_trace_of_another_model_is_refused(tmp_path):
    source = publish(tmp_path / "olmoe-1b-7b__x", {})
    with pytest.raises(
        UsageError, match="2 MoE layers of 6 experts; olmoe-1b-7b has 16 of 64; give"
    ):
        import_trace(source, tmp_path / "out")
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError, match="there: exists; give another --out, or remove it first"):
        import_trace(source, tmp_path / "there")


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


@pytest.mark.parametrize(
    ("seq", "tokens", "longest", "allowed"),
    [([0, 0, 0, 0], 4, 4, "allowed: 1 to 3"), ([0, 0, 1, 1], 9, 2, "allowed: 1 to 1"),
     ([0, 1, 2, 3], 1, 1, "leave it out")],
)  # fmt: skip
def test_a_prompt_of_all_tokens_leaves_nothing_to_decode(tmp_path, seq, tokens, longest, allowed):
    source = publish(tmp_path / "a__b", {}, seq=np.array(seq, np.int32))
    with pytest.raises(UsageError) as caught:
        import_trace(source, tmp_path / "out", prompt_tokens=tokens)
    assert str(caught.value) == (
        f"--prompt-tokens {tokens}: the longest sequence of {source} has {longest} tokens, nothing "
        f"would be decoded; {allowed}"
    )
    if longest > 1:
        import_trace(source, tmp_path / "out", prompt_tokens=longest - 1)
