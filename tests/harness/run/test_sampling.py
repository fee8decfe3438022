"""`--temperature` and `--top-p`: drawn tokens of live runs."""

from typing import Any

import pytest

from moebench.harness.run.live import sampling_of
from moebench.harness.run.rules import resolve
from moebench.results.spec import RunSpec
from moebench.substrate.errors import UsageError
from moebench.substrate.models.sampling import Sampling
from tests.harness.commands import call, refused, run

SAMPLED = ("--temperature", "2", "--top-p", "0.99", "--prompts", "2", "--new-tokens", "8")


def answers(document: dict[str, Any]) -> list[str]:
    found: list[str] = document["accuracy"]["items"]["answer"]
    return found


@pytest.fixture(scope="module")
def resident() -> dict[str, Any]:
    return run("gpu-only", "--allow-overcommit", *SAMPLED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "more"),
    [
        ("moe-ondemand", ()), ("moe-ondemand", ("--batch", "2")), ("duoserve", ()),
        ("fiddler", ()), ("flashmoe", ()), ("moe-infinity", ()),
    ],
)  # fmt: skip
def test_a_lossless_system_draws_the_resident_models_tokens(
    resident: dict[str, Any], system: str, more: tuple[str, ...]
) -> None:
    found = run(system, "--calibrate-texts", "2", *SAMPLED, *more)
    assert found["lossless"]
    assert answers(found) == answers(resident)
    assert found["accuracy"]["agreement"] == 1


@pytest.mark.slow
def test_tokens_follow_from_the_seed(resident: dict[str, Any]) -> None:
    again = run("gpu-only", "--allow-overcommit", *SAMPLED)
    greedy = run("gpu-only", "--allow-overcommit", *SAMPLED[4:])
    assert answers(again) == answers(resident)
    assert again["run_id"] == resident["run_id"] != greedy["run_id"]
    assert not set(answers(greedy)) & set(answers(resident))


@pytest.mark.slow
def test_a_greedy_run_names_no_temperature(resident: dict[str, Any]) -> None:
    """So that its spec, and its identity, are those of runs before the option was there."""
    explicit = run("gpu-only", "--allow-overcommit", "--temperature", "0", "--top-p", "1")
    plain = run("gpu-only", "--allow-overcommit")
    assert explicit["run_id"] == plain["run_id"]
    assert not {"temperature", "top_p"} & plain["spec"].keys()
    assert (resident["spec"]["temperature"], resident["spec"]["top_p"]) == (2, 0.99)


@pytest.mark.slow
def test_drawn_answers_are_scored_where_that_is_asked_for(resident: dict[str, Any]) -> None:
    accuracy = resident["accuracy"]
    assert (accuracy["score"], accuracy["n"]) == (None, 0)
    assert accuracy["kl"] == 0
    note = "tokens are drawn at temperature 2, top-p 0.99, with seed 0"
    assert f"{note}, and are not scored" in resident["notes"]
    asked = run("gpu-only", "--allow-overcommit", *SAMPLED, "--scoring", "generation")
    assert asked["accuracy"]["n"] == 2
    assert note in asked["notes"]
    greedy = run("gpu-only", "--allow-overcommit", *SAMPLED[4:])
    assert greedy["accuracy"]["n"] == 2
    assert not [note for note in greedy["notes"] if "drawn at" in note]


def test_the_spec_says_how_tokens_are_drawn() -> None:
    given: dict[str, Any] = {"system": "gpu-only", "setting": "S3", "seed": 5}
    assert sampling_of(resolve(None, **given)) is None
    sampled = resolve(None, **given, temperature=0.5, top_p=0.25)
    assert sampling_of(sampled) == Sampling(0.5, 0.25, 5)


BASE = ("run", "--system", "smoe", "--setting", "S3")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--temperature", "-0.1"), "--temperature"),
        (("--temperature", "2.5"), "--temperature"),
        (("--temperature", "0.5", "--top-p", "0"), "--top-p"),
        (("--temperature", "0.5", "--top-p", "1.5"), "--top-p"),
        (("--top-p", "0.9"), "give --temperature, above 0"),
        (("--temperature", "0.5", "--scoring", "likelihood"), "no token is drawn"),
        (("--temperature", "0.5", "--scoring", "prefill"), "no token is drawn"),
        (("--temperature", "0.5", "--routing", "replayed"), "routing is replayed"),
        (("--temperature", "0.5", "--routing", "drawn"), "routing is replayed"),
        (("--temperature", "0.5", "--trace", "x"), "--temperature and --trace"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(*BASE, *arguments)


@pytest.mark.parametrize("value", [0.0, 1e-9, 1.0, 2.0])
def test_temperatures_from_0_to_2_are_allowed(value: float) -> None:
    spec: RunSpec = resolve(None, system="smoe", setting="S3", temperature=value)
    assert spec.temperature == value


def test_a_package_is_not_told_how_to_draw() -> None:
    with pytest.raises(UsageError, match="a package runs by itself"):
        resolve(
            None, system="native-accelerate", model="mixtral-8x7b", machine="local", temperature=0.5
        )


@pytest.mark.slow
def test_a_sweep_has_temperatures_as_an_axis() -> None:
    called = call("sweep", "--systems", "gpu-only", "--models", "mixtral-8x7b", "--machines",
                  "h200", "--temperatures", "0,0.7,1", "--dry-run", "--json")  # fmt: skip
    assert called.code == 0, called.err
    assert len(called.json["cells"]) == 3
