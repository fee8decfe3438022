"""Target ranges from recordings: cutting of texts, ranges of figures, and the target file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.scale import targets as measuring
from moebench.harness.scale.targets import WINDOW, Family, Texts, read_texts, span
from moebench.substrate.analysis.statistics import summary
from tests.harness.commands import call, refused

#: Of the tiny recordings: OLMoE has 64 experts and top-8.
LAYERS, EXPERTS, TOP_K = 2, 64, 8


def record(
    folder: Path,
    lengths: list[int],
    prompts: list[int],
    experts: int = EXPERTS,
    top_k: int = TOP_K,
    **meta: Any,
) -> Path:
    """Write a recording of random routing; a token's first id is its position."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(len(lengths))
    tokens = sum(lengths)
    ids = np.argsort(random.random((tokens, LAYERS, experts)), axis=2)[:, :, :top_k]
    phase = [np.arange(n) >= prompt for n, prompt in zip(lengths, prompts, strict=True)]
    arrays = {
        "ids": ids.astype(np.uint8),
        "seq": np.repeat(np.arange(len(lengths)), lengths),
        "phase": np.concatenate(phase).astype(np.uint8),
    }
    np.savez(folder / "trace.npz", **arrays)
    (folder / "meta.json").write_text(json.dumps({"num_experts": experts, **meta}))
    return folder


# --------------------------------------------------------------------------- texts


def test_a_generated_text_is_cut_into_windows_and_ends_where_it_loops(tmp_path: Path) -> None:
    loops = [{"sequence": 1, "from_token": 70}, {"sequence": 2, "from_token": 2 * WINDOW}]
    lengths = [100, 200, 3 * WINDOW]
    texts = read_texts(record(tmp_path / "a", lengths, [30, 0, 0], loops=loops))
    assert (texts.count, texts.num_experts, texts.top_k) == (3, EXPERTS, TOP_K)
    found = [(len(window.ids_TLK), window.prefill) for window in texts.windows]
    assert found == [(100, 30), (70, 0), (WINDOW, WINDOW // 2), (WINDOW, WINDOW // 2)]


def test_texts_that_were_read_follow_each_other_in_windows(tmp_path: Path) -> None:
    texts = read_texts(record(tmp_path / "a", [100] * 6, [100] * 6))
    assert texts.count == 6
    assert [len(window.ids_TLK) for window in texts.windows] == [WINDOW, WINDOW]


def test_weights_come_from_the_scores_of_the_chosen(tmp_path: Path) -> None:
    folder = record(tmp_path / "a", [4], [0], experts=3, top_k=2)
    arrays = dict(np.load(folder / "trace.npz"))
    scores = np.tile(np.array([0.6, 0.2], np.float16), (4, LAYERS, 1))
    np.savez(folder / "trace.npz", **arrays, scores=scores)
    found = measuring._of_texts(read_texts(folder))
    assert found["weight_by_rank.1"] == pytest.approx(0.75, abs=1e-3)


# --------------------------------------------------------------------------- ranges


def test_a_single_figure_has_a_margin() -> None:
    assert span("used.32", [0.5]) == (0.45, 0.55)
    assert span("used.32", [0.5], 0.2) == (0.4, 0.6)
    # At most half of what lacks to 1, and at least a hundredth.
    assert span("used.32", [0.96]) == (0.94, 0.98)
    assert span("used.32", [1.0]) == (0.99, 1.0)
    assert span("popularity.max_over_mean", [5.0]) == (4.5, 5.5)


def test_figures_that_disagree_are_spanned() -> None:
    assert span("used.32", [0.7, 0.5, 0.6]) == (0.5, 0.7)
    # The margin about the middle of these two values is wider than their range.
    assert span("used.32", [0.49, 0.51]) == (0.45, 0.55)


@given(st.lists(st.floats(0, 1.2), min_size=1, max_size=4))
def test_a_range_holds_its_figures_and_is_a_share(values: list[float]) -> None:
    low, high = span("used.32", values)
    rounding = 10**-measuring.DECIMALS
    assert low - rounding <= min(1, *values) <= min(1, max(values)) <= high + rounding
    assert low <= high <= 1


def test_random_routing_is_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "RANDOM_LAYERS", 8)
    like = Texts(measuring._WHOLE[:1], 1, 16, 4)
    found = summary(measuring._random(like).windows, 16)
    assert found["lag_overlap"]["1"] == pytest.approx(4 / 16, abs=0.02)
    assert found["used"]["32"] == pytest.approx(1 - (1 - 4 / 16) ** 32, abs=0.01)
    assert found["weight_by_rank"]["1"] == 1 / 4
    again = measuring._random(like).windows[0].ids_TLK
    assert (again == measuring._random(like).windows[0].ids_TLK).all()


# --------------------------------------------------------------------------- the command


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a recording of the model's topology, one of another, and totals."""
    folder = tmp_path / "data" / "traces"
    record(folder / "same", [WINDOW] * 2, [0, 0])
    record(folder / "fewer", [150], [0], experts=60, top_k=4)
    (folder / "totals").mkdir()
    counts = [[1] * EXPERTS, [3] * (EXPERTS // 2) + [1] * (EXPERTS // 2)]
    entries = {name: {"counts": counts} for name in measuring.TOTALS}
    (folder / "totals" / "popularity.json").write_text(json.dumps({"entries": entries}))
    families = (
        Family(("olmoe-1b-7b",), ("same",), "itself", "totals"),
        Family(("qwen2-57b-a14b",), ("fewer",), "a smaller one"),
    )
    monkeypatch.setattr(measuring, "FAMILIES", families)
    monkeypatch.setattr(measuring, "RANDOM_LAYERS", 2)
    file = tmp_path / "routing.yaml"
    file.write_text("# by hand\npublished: []\n\nmeasured: []\n")
    monkeypatch.setattr(measuring, "ROUTING", file)
    return tmp_path / "data"


def test_targets_are_measured_written_and_compared(data: Path, tmp_path: Path) -> None:
    first = call("models", "targets", "--data-dir", data)
    assert first.code == 1
    assert "olmoe-1b-7b: used.32 is (" in first.err
    assert "used.32\t" in first.out
    written = call("models", "targets", "--data-dir", data, "--write", "--json")
    assert written.code == 0
    same, fewer = written.json["families"]
    # What was recorded is random, so it is in proportion to random routing of its own topology ...
    low, high = fewer["ranges"]["lag_overlap.1"]
    assert low == pytest.approx(0.8 * (low + high) / 2, rel=0.02)
    assert low < 8 / 64 < high
    assert "random as fewer" in fewer["figures"]
    # ... popularity is that of the totals: 3/4 of a layer's choices on half of its experts, or all
    # alike, so means over the two layers are (1 + 1.5) / 2 and (0 + .25) / 2.
    low, high = same["ranges"]["popularity.max_over_mean"]
    assert (low, high) == (pytest.approx(1.25 * 0.9), pytest.approx(1.25 * 1.1))
    assert same["figures"]["totals, c4"]["popularity.gini"] == pytest.approx(0.125)
    text = (tmp_path / "routing.yaml").read_text()
    assert text.startswith("# by hand\npublished: []\n\nmeasured:\n")
    again = call("models", "targets", "--data-dir", data, "--json")
    assert (again.code, again.json["differences"]) == (0, [])


def test_missing_recordings_are_refused_in_one_line(data: Path, here: Path) -> None:
    assert "give --data-dir" in refused("models", "targets")
    assert "no such folder" in refused("models", "targets", "--data-dir", "nowhere")
    totals = data / "traces" / "totals" / "popularity.json"
    totals.write_text("{}")
    assert "holds no totals of c4" in refused("models", "targets", "--data-dir", data)
    (data / "traces" / "same" / "meta.json").unlink()
    assert "meta.json: cannot be read" in refused("models", "targets", "--data-dir", data)
