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
from moebench.substrate.models.catalogue import model_shape, shape_names
from moebench.substrate.terms import RoutedSequence
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


# --------------------------------------------------------------------------- figures by hand


def routed(*ids: list[list[int]], prefill: int = 0) -> RoutedSequence:
    return RoutedSequence(np.array(ids), prefill)


def test_popularity_of_recordings_alone_and_together() -> None:
    """Two layers of four experts: each recording uses two of them, together all alike."""
    first = Texts([routed(*[[[0], [1]]] * 4), routed(*[[[1], [0]]] * 4)], 2, 4, 1)
    second = Texts([routed(*[[[2], [2]]] * 8)], 1, 4, 1)
    found = measuring._over_all({"first": first, "second": second})
    assert found.keys() == {"first", "all together"}
    assert found["first"]["popularity.max_over_mean"] == pytest.approx(2.0)
    assert found["first"][measuring.SIMILARITY] == pytest.approx(0.0)
    # 4, 4 and 8 choices of 16 over four experts: the most used has twice the mean.
    assert found["all together"]["popularity.max_over_mean"] == pytest.approx(2.0)
    assert measuring._over_all({"second": second}) == {}
    assert measuring._over_all({"first": first}).keys() == {"first"}


def test_totals_have_their_similarity_scaled(tmp_path: Path) -> None:
    names = measuring.TOTALS
    counts = {name: [[2, 0], [1, 1]] if n % 2 else [[0, 2], [1, 1]] for n, name in enumerate(names)}
    entries = {name: {"counts": counts[name]} for name in names}
    (tmp_path / "popularity.json").write_text(json.dumps({"entries": entries}))
    found = measuring._of_totals(tmp_path, 0.5)
    assert list(found) == [*(f"totals, {name}" for name in names), "totals, mixed"]
    one, mixed = found["totals, c4"], found["totals, mixed"]
    # Of two experts, one has all of the first layer's choices: twice the mean, and Gini 1/2.
    assert one == pytest.approx({"popularity.max_over_mean": 1.5, "popularity.gini": 0.25})
    assert mixed["popularity.max_over_mean"] == pytest.approx(1.0)
    # Of six pairs four differ in one of two layers, where the cosine is 0: (2 + 4 / 2) / 6.
    assert mixed[measuring.SIMILARITY] == pytest.approx(0.5 * (2 + 4 * 0.5) / 6)


def test_prompt_and_answer_are_compared_by_halves(tmp_path: Path) -> None:
    """Four tokens in a row use one expert, the next four another: halves have nothing in common."""
    texts = Texts([routed(*[[[0]]] * 4, *[[[1]]] * 4, prefill=1)], 1, 2, 1)
    assert measuring._of_texts(texts)["prefill_decode_similarity"] == pytest.approx(0.0)


def measured(*models: str, why: str = "why", **ranges: tuple[float, float]) -> measuring.Measured:
    family = Family(models, ("a", "b"), why, "t")
    return measuring.Measured(family, {"a": {"x": 0.5}, "b": {"y": 0.25}}, ranges)


def test_figures_are_shown_beside_their_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    measuring.show(measured("m", "n", x=(0.4, 0.6), y=(0.2, 0.3456)))
    assert [line.split("\t") for line in capsys.readouterr().out.splitlines()] == [
        ["statistic", "a", "b", "range"], ["x", "0.500", "-", "0.400-0.600"],
        ["y", "-", "0.250", "0.200-0.346"],
    ]  # fmt: skip


def test_differences_from_the_file_are_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "routing.yaml"
    file.write_text("# by hand\npublished: []\n\nmeasured: []\n")
    monkeypatch.setattr(measuring, "ROUTING", file)
    old = [measured("m", x=(0.4, 0.6), gone=(0.1, 0.2)), measured("old"), measured("same")]
    measuring.write(old)
    assert measuring.differences(old) == []
    now = [measured("m", x=(0.401, 0.6), new=(0.1, 0.2)), measured("same", why="other")]
    assert measuring.differences(now) == [
        "m: gone is None, the file says (0.1, 0.2)", "m: new is (0.1, 0.2), the file says None",
        "old: in the file, not measured", "same: measured on other recordings than the file says",
    ]  # fmt: skip
    assert measuring.differences([measured("m", x=(0.402, 0.6), gone=(0.1, 0.2)), *old[1:]]) == [
        "m: x is (0.402, 0.6), the file says (0.4, 0.6)"
    ]
    new = measuring.differences([*old, measured("unknown")])
    assert new == ["unknown: measured on other recordings than the file says"]
    evidence = old[0].evidence
    assert evidence.models == ("m",)
    assert evidence.source == "measured on a, b, t: why"
    assert evidence.ranges == {"x": (0.4, 0.6), "gone": (0.1, 0.2)}


def test_random_routing_takes_the_place_of_another_topology(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures of 4 experts are multiplied by what 64 have by chance over what 4 have."""
    monkeypatch.setattr(measuring, "RANDOM_LAYERS", 2)
    own = record(tmp_path / "own", [WINDOW], [0])
    texts = read_texts(record(tmp_path / "few", [WINDOW], [0], experts=16, top_k=2))
    family = Family(("olmoe-1b-7b",), ("few",), "few", without=("used.32",))
    found = measuring._measure(tmp_path, family)
    assert list(found.figures) == ["few", "random as few", "random as olmoe-1b-7b"]
    few, chance, wanted = found.figures.values()
    assert few == measuring._of_texts(texts)
    expected = few["lag_overlap.1"] * wanted["lag_overlap.1"] / chance["lag_overlap.1"]
    assert found.ranges["lag_overlap.1"] == span("lag_overlap.1", [expected], measuring.CARRIED)
    assert "used.32" not in found.ranges
    same = measuring._measure(tmp_path, Family(("olmoe-1b-7b",), ("own",), "itself"))
    value = measuring._of_texts(read_texts(own))["lag_overlap.1"]
    assert list(same.figures) == ["own"]
    assert same.ranges["lag_overlap.1"] == span("lag_overlap.1", [value], measuring.MARGIN)
    both = measuring._measure(tmp_path, Family(("olmoe-1b-7b",), ("own", "few"), "both"))
    assert "all together" in both.figures
    assert both.ranges["lag_overlap.1"] == span(
        "lag_overlap.1", [value, expected], measuring.CARRIED
    )


def test_progress_counts_families(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measuring, "FAMILIES", ("a", "b"))
    monkeypatch.setattr(measuring, "_measure", lambda folder, family: (folder, family))
    steps: list[tuple[int, int]] = []
    found: Any = measuring.measure(tmp_path, lambda done, total: steps.append((done, total)))
    assert found == [(tmp_path / "traces", "a"), (tmp_path / "traces", "b")]
    assert steps == [(1, 2), (2, 2)]


def test_families_are_models_of_the_catalogue_and_recordings_with_a_text() -> None:
    known = {*shape_names()}
    for family in measuring.FAMILIES:
        assert known.issuperset(family.models)
        assert len({(model_shape(m).num_experts, model_shape(m).top_k) for m in family.models}) == 1
        assert all(trace.count("__") == 1 for trace in family.traces)
        assert family.totals is None or family.totals.endswith("__popularity")
    models = [model for family in measuring.FAMILIES for model in family.models]
    assert len(models) == len(set(models)), "each model has one family"
