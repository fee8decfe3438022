"""Weights of live runs: names, hashes, what runs share, and what a stage is asked for."""

import hashlib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.run import learn, weights
from moebench.harness.run.weights import OpenWeights, named, open_weights, under
from moebench.results.spec import RunSpec
from moebench.substrate.errors import UsageError
from moebench.substrate.models import norms, shared


def spec_of(**given: Any) -> RunSpec:
    base = {"system": "smoe", "machine": "h100", "model": "m", "workload": "arithmetic"}
    return RunSpec(**{**base, **given})


class Shared(SimpleNamespace):
    """Shared work that notes with what it was made."""

    def __init__(self, checkpoint: Any, remember: bool = False, expert_dtype: Any = None) -> None:
        super().__init__(
            made=(checkpoint, remember, expert_dtype), decoder=self.decode,
            differentiable="differentiable", rounding="rounding",
            remembering=lambda decoder: ("remembering", decoder),
        )  # fmt: skip

    def decode(self, **options: Any) -> Any:
        return ("decoder", options)


@pytest.fixture(autouse=True)
def share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "SharedWork", Shared)


def opened(**more: Any) -> Any:
    base: dict[str, Any] = {
        "full": "full", "checkpoint": SimpleNamespace(shape=SimpleNamespace(total_params=2.5e6)),
        "texts": SimpleNamespace(tokenizer="tokenizer", end=9), "hashes": {"weights": "w1"},
        "expert_dtype": None, "remember": True,
    }  # fmt: skip
    return OpenWeights(**{**base, **more})


def test_a_run_alone_has_shared_work_of_its_own() -> None:
    made = opened(expert_dtype="int8")
    assert (made.tokenizer, made.end) == ("tokenizer", 9)
    alone = made.sharing()
    assert alone.made == (made.checkpoint, False, "int8")
    assert made.sharing() is alone is made.shared


def test_runs_share_what_the_first_one_made() -> None:
    first, second = opened(expert_dtype="int4"), opened()
    work = first.share(None)
    assert work.made == (first.checkpoint, True, "int4")
    assert first.sharing() is work
    assert second.share(work) is work is second.shared
    assert opened(remember=False).share(None).made[1] is False


SYSTEM: dict[str, Any] = {
    "forms": (0,), "predictors": [SimpleNamespace(in_prefill=False)],
    "route": SimpleNamespace(exact_prefill=True),
}  # fmt: skip


@pytest.mark.parametrize(
    ("scoring", "system", "remembers"),
    [
        ("fixed-length", {}, True), ("prefill", {}, False),
        ("generation", {"forms": (0, 1)}, False),
        ("generation", {"predictors": [SimpleNamespace(in_prefill=False),
                                       SimpleNamespace(in_prefill=True)]}, False),
        ("generation", {"route": SimpleNamespace(exact_prefill=False)}, False),
        ("generation", {"predictors": []}, True),
    ],
)  # fmt: skip
def test_prefills_are_remembered_where_all_systems_have_the_same(
    scoring: str, system: dict[str, Any], remembers: bool
) -> None:
    asked: Any = SimpleNamespace(**SYSTEM | system)
    decoder, model = opened().resident(scoring, asked)
    assert decoder == ("decoder", {"reuse_predictions": True, "forms": asked.forms})
    assert model == (("remembering", decoder) if remembers else decoder)


@pytest.mark.parametrize(("scoring", "end"), [("generation", 9), ("fixed-length", None)])
def test_learnt_texts_are_those_of_the_lossless_model(
    scoring: str, end: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(learn, "source", lambda spec: ("source", spec.scoring))
    monkeypatch.setattr(learn, "texts", lambda *given: ("texts", *given))
    monkeypatch.setattr(learn, "LosslessModel", lambda *given: given)
    monkeypatch.setattr(learn, "folder", lambda scratch: scratch / "learnt")
    monkeypatch.setattr(learn, "learnt_from", lambda policies: ("from", *policies))
    monkeypatch.setattr(learn, "written", lambda *given: given)
    system: Any = SimpleNamespace(policies={"evict": "e", "prefetch": "p"}, lookaheads="ahead")
    made, spec = opened(expert_dtype="int8"), spec_of(scoring=scoring)
    progress: Any = object()
    found: Any = made.learnable(spec, system, Path("data"), tmp_path, progress)
    source, texts, model, folder, told, learnt, ahead = found
    assert (source, texts) == (("source", scoring), ("texts", spec, system, Path("data")))
    assert model == (made.sharing().decoder, "differentiable", "rounding", "w1int8", "tokenizer",
                     end)  # fmt: skip
    assert (folder, told, learnt, ahead) == (
        tmp_path / "learnt", progress, ("from", "e", "p"), "ahead",
    )  # fmt: skip
    plain: Any = opened().learnable(spec, system, None, tmp_path, progress)
    assert plain[2][3] == "w1"


def test_norms_of_experts_are_measured_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[Any] = []

    def expert_norms(checkpoint: Any) -> Any:
        measured.append(checkpoint)
        return np.array([[1.0, 2.5]])

    monkeypatch.setattr(norms, "expert_norms", expert_norms)
    monkeypatch.setattr(learn, "folder", lambda scratch: scratch / "learnt")
    made = opened()
    for _ in range(2):
        assert made.weight_norms(tmp_path).tolist() == [[1.0, 2.5]]
    assert measured == [made.checkpoint]
    (file,) = (one for one in (tmp_path / "learnt").iterdir() if one.suffix == ".safetensors")
    assert file.name == "weight-norms-w1.safetensors"


@pytest.mark.parametrize(
    ("machine", "dtype", "notes"),
    [
        ("h100", None, ["lengths"]), ("local", None, []), ("local", "int8", []),
        ("h100", "int8", ["lengths", "experts are quantised to int8 and computed with as the "
                          "numbers that these stand for, in fp32"]),
    ],
)  # fmt: skip
def test_a_stage_is_asked_for_with_these_weights(
    machine: str, dtype: Any, notes: list[str], tmp_path: Path
) -> None:
    spec, made = spec_of(machine=machine), opened(expert_dtype=dtype)
    system: Any = object()
    model: Any = object()
    found = made.request(spec, system, 77, model, tmp_path, True, "lengths")
    assert (found.spec, found.system, found.full, found.longest, found.model) == (
        spec, system, "full", 77, model,
    )  # fmt: skip
    assert (found.weights, found.weights_name) == (made.checkpoint, "w1")
    assert (found.scratch, found.keep_timeline) == (tmp_path, True)
    assert found.ran == "m's scale model, 2.5 M parameters"
    assert found.notes == notes


@pytest.mark.parametrize(
    ("params", "size"),
    [(2_500_000, "2.5 M"), (999_999_999, "1e+03 M"), (1e9, "1 B"), (57.4e9, "57.4 B"),
     (123_456, "0.123 M")],
)  # fmt: skip
def test_the_computing_model_is_named_with_its_size(params: float, size: str, here: Path) -> None:
    checkpoint: Any = SimpleNamespace(shape=SimpleNamespace(total_params=params))
    assert named(spec_of(), checkpoint) == f"m's scale model, {size} parameters"
    (here / "real").mkdir()
    (here / "link").symlink_to("real")
    assert named(spec_of(weights="link/"), checkpoint) == f"real, {size} parameters"


# ----------------------------------------------------------------------------- opening


def short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of weights; each opening of it has a number, which is the content's hash."""
    openings: list[Path] = []

    def open_checkpoint(path: Path) -> Any:
        openings.append(path)
        number = len(openings)
        return SimpleNamespace(path=path, shape="shape", content_hash=lambda: f"opening {number}")

    def read_texts(path: Path, plain: bool) -> Any:
        template = None if plain else SimpleNamespace(source="a template")
        return SimpleNamespace(tokenizer=SimpleNamespace(to_str=lambda: "words"), template=template)

    full = SimpleNamespace(model_dump_json=lambda: "a model")
    checked: list[Any] = []
    monkeypatch.setattr(weights, "model_shape", lambda name: full)
    monkeypatch.setattr(weights, "weights_path", lambda spec: tmp_path / "w")
    monkeypatch.setattr(weights, "open_checkpoint", open_checkpoint)
    monkeypatch.setattr(weights, "read_texts", read_texts)
    monkeypatch.setattr(weights, "check_topology", lambda *given: checked.append(given))
    monkeypatch.setattr(weights, "profile_hash", lambda spec: f"profile of {spec.machine}")
    monkeypatch.setattr(weights, "version", lambda name: f"version of {name}")
    weights._opened.cache_clear()
    yield tmp_path / "w"
    assert all(given == (full, "shape", tmp_path / "w") for given in checked)
    assert checked
    weights._opened.cache_clear()


def test_all_inputs_of_weights_are_hashed(folder: Path) -> None:
    found = open_weights(spec_of())
    assert found.hashes == {
        "weights": "opening 1", "tokenizer": short("words"), "model": short("a model"),
        "profile": "profile of h100", "torch": "version of torch", "numpy": np.__version__,
        "numba": "version of numba", "chat template": short("a template"),
    }  # fmt: skip
    assert (found.expert_dtype, found.remember, found.shared) == (None, True, None)
    own = open_weights(spec_of(weights="w", expert_dtype="int8", plain_prompts=True))
    assert "chat template" not in own.hashes
    assert (own.expert_dtype, own.remember) == ("int8", False)


def test_a_missing_compiler_of_kernels_is_a_part_of_the_id(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version_of(name: str) -> str:
        if name == "numba":
            raise PackageNotFoundError(name)
        return f"version of {name}"

    monkeypatch.setattr(weights, "version", version_of)
    assert open_weights(spec_of()).hashes["numba"] == "none"


def test_a_folder_is_read_again_where_its_files_changed(folder: Path) -> None:
    assert open_weights(spec_of()).hashes["weights"] == "opening 1"
    assert open_weights(spec_of()).hashes["weights"] == "opening 1", "nothing changed"
    folder.mkdir()
    (folder / "a.bin").write_text("x")
    assert open_weights(spec_of()).hashes["weights"] == "opening 2"
    assert open_weights(spec_of()).hashes["weights"] == "opening 2"
    (folder / "a.bin").write_text("xy")
    assert open_weights(spec_of()).hashes["weights"] == "opening 3"
    (folder / "a.bin").rename(folder / "b.bin")
    assert open_weights(spec_of()).hashes["weights"] == "opening 4"
    assert open_weights(spec_of(plain_prompts=True)).hashes["weights"] == "opening 5"


# ----------------------------------------------------------------------------- other specs


def test_another_spec_keeps_the_hashes_of_weights_and_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weights, "system_hash", lambda system: f"code of {system.name}")
    monkeypatch.setattr(learn, "identity", lambda spec, system, data_dir: {
        "calibration": f"learnt in {data_dir}"})  # fmt: skip
    monkeypatch.setattr(weights, "bits_hash", lambda spec: {"bits": "b"})
    monkeypatch.setattr(weights, "profile_hash", lambda spec: f"profile of {spec.machine}")
    made = SimpleNamespace(name="other", clairvoyant=False)
    monkeypatch.setattr(RunSpec, "make_system", lambda spec: made)
    hashes = {"weights": "w1", "data": "d1", "profile": "old", "system": "old",
              "calibration": "old", "calibration texts": "old"}  # fmt: skip
    system, found = under(spec_of(machine="a100"), hashes, Path("data"))
    assert system is made  # type: ignore[comparison-overlap]
    assert found == {
        "weights": "w1", "data": "d1", "profile": "profile of a100", "system": "code of other",
        "calibration": "learnt in data", "bits": "b",
    }  # fmt: skip
    made.clairvoyant = True
    with pytest.raises(UsageError) as caught:
        under(spec_of(), hashes, None)
    assert str(caught.value) == (
        f"{spec_of().title} must know which experts come next: replay recorded routing, for "
        "example --trace DIR or --routing drawn"
    )
