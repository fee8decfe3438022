"""Runs of systems that read norms of experts' weights, or that route prompts otherwise."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moebench.harness.one_run import run
from moebench.harness.run.live import LiveSession, prepare
from moebench.harness.run.rules import resolve
from moebench.results.store import Store
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.remembered import RememberedPrefills
from tests.harness.commands import call
from tests.harness.tiny import EXPERTS, LAYERS

pytestmark = pytest.mark.usefixtures("tiny_models")

SIZES = {"prompts": 2, "new_tokens": 5, "slots": 16}


def session_of(system: str, **more: Any) -> LiveSession:
    """Return a live run of two prompts in setting D1, whose device holds half of the experts."""
    return prepare(resolve(None, system=system, setting="D1", **SIZES, **more), None)


def test_a_live_run_gives_the_norms_of_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of("swapmoe")
    given: list[np.ndarray] = []
    monkeypatch.setattr(session.system, "weight_norms", given.append)
    with ExitStack() as stack:
        session.open(tmp_path, False, stack)
    (norms_LE,) = given
    assert norms_LE.shape == (LAYERS, EXPERTS)
    assert norms_LE.min() > 0
    assert np.array_equal(session.weights.weight_norms(tmp_path), norms_LE)
    assert len(list(tmp_path.rglob("weight-norms-*.safetensors"))) == 1


def test_a_run_without_readers_computes_no_norms(tmp_path: Path) -> None:
    session = session_of("swapmoe", overrides={"admit.importance": "gates"})
    with ExitStack() as stack:
        session.open(tmp_path, False, stack)
    assert not list(tmp_path.rglob("weight-norms-*"))


@pytest.mark.parametrize(
    ("system", "options", "shares"),
    [
        ("smoe", {}, True),
        ("swapmoe", {}, False),
        ("cache-prior", {}, True),
        ("cache-prior", {"route.emptied": "false"}, False),
        ("moe-ondemand", {"route": "random"}, True),
        ("moe-ondemand", {"route": "random", "route.prefill": "true"}, False),
    ],
)
def test_only_exact_prefills_are_shared(system: str, options: dict[str, str], shares: bool) -> None:
    session = session_of(system, overrides=options)
    session.share(None)
    decoder, model = session.weights.resident("fixed-length", session.system)
    assert isinstance(decoder, Decoder)
    assert isinstance(model, RememberedPrefills) == shares


@pytest.mark.slow
def test_a_sweep_runs_it_beside_systems_that_share_prefills() -> None:
    called = call(
        "sweep", "--systems", "moe-ondemand,swapmoe,smoe", "--settings", "D1", "--prompts", "2",
        "--new-tokens", "5", "--jobs", "0", "--json",
    )  # fmt: skip
    assert called.code == 0, called.err
    found = {r["spec"]["system"]: r for r in Store(Path(".moebench")).runs()}
    assert found["moe-ondemand"]["accuracy"]["kl"] == 0
    assert found["swapmoe"]["accuracy"]["kl"] > 0
    assert found["swapmoe"]["metrics"]["cache_ratio"] == 1
    sizes = {"prompts": 2, "new_tokens": 5}
    alone = prepare(resolve(None, system="swapmoe", setting="D1", **sizes), None)
    again = run(alone, Path("other")).document
    assert again["accuracy"]["kl"] == found["swapmoe"]["accuracy"]["kl"]
    assert again["metrics"]["tpot_ms"] == found["swapmoe"]["metrics"]["tpot_ms"]


@pytest.mark.slow
def test_a_system_that_reads_tokens_has_an_interval_and_says_how_it_predicts(
    tmp_path: Path,
) -> None:
    """The pass over the profile's ranges replays the run, with the embeddings that it read."""
    called = call(
        "run", "--system", "sida", "--setting", "D1", "--workload", "arithmetic", "--prompts", "2",
        "--new-tokens", "5", "--slots", "16", "--calibrate-texts", "4", "--set", "route.width=8",
        "--set", "route.epochs=2", "--store", tmp_path, "--json",
    )  # fmt: skip
    assert called.code == 0, called.err
    document = called.json
    low, high = (document["interval"]["tpot_ms"][end] for end in ("low", "high"))
    assert low < document["metrics"]["tpot_ms"]["mean"] < high
    assert not document["lossless"]
    assert 0 <= float(document["provenance"]["learnt"]["route"]["top_3"]) <= 1
    places = document["metrics"]["routed_ahead"]
    assert places["places"] == document["metrics"]["experts"]["decode"]["active"]
    assert 0 <= places["right"] <= 1
