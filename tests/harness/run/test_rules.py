"""How a spec is resolved from what was given, a setting and the defaults."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.arguments import find_data_dir
from moebench.harness.run import rules
from moebench.harness.run.rules import resolve
from moebench.results.spec import RunSpec
from moebench.substrate.errors import MoeBenchError, UsageError
from moebench.substrate.models.catalogue import OWN_BITS
from moebench.substrate.traces import catalogue, file
from tests.harness.commands import SCALE_MODEL


def test_a_setting_fills_what_was_not_given() -> None:
    spec = resolve(None, system="smoe", setting="S3", batch=None, machine=None)
    assert spec == RunSpec(
        system="smoe", setting="S3", machine="a6000", software="hf-eager",
        model="qwen2-57b-a14b", precision="bf16", device_memory_gib=41.56,
        workload="passages", batch=1, prompts=32, new_tokens=64, cache_ratio=None, seed=0,
        overrides={"alpha": "0.25"},
    )  # fmt: skip


def test_what_was_given_beats_the_setting_and_the_default() -> None:
    given = {
        "machine": "h100", "model": "mixtral-8x22b", "precision": "4bit", "cache_ratio": 0.3,
        "new_tokens": 7, "batch": 2, "prompts": 4, "seed": 9, "workload": "mmlu",
    }  # fmt: skip
    spec = resolve(None, system="smoe", setting="d1", alpha=0.1, **given)
    assert spec.model_dump(include=set(given)) == given
    assert spec.setting == "D1"
    assert spec.overrides == {"alpha": "0.1"}


def test_software_is_the_settings_or_lean() -> None:
    assert resolve(None, system="smoe", setting="S3", software="lean").software == "lean"
    bare = {"machine": "h100", "model": "mixtral-8x7b"}
    assert resolve(None, system="smoe", **bare).software == "lean"
    assert resolve(None, system="smoe", **bare, software="hf-eager").software == "hf-eager"
    with pytest.raises(UsageError, match=r"unknown software 'triton'.*hf-eager"):
        resolve(None, system="smoe", setting="S3", software="triton")


def test_this_computer_runs_our_own_engine() -> None:
    assert resolve(None, system="smoe", setting="S3", machine="local").software == "lean"
    with pytest.raises(UsageError, match="--software lean and --machine local"):
        resolve(None, system="smoe", setting="S3", machine="local", software="lean")


def test_settings_bring_lengths_and_memory() -> None:
    assert resolve(None, system="smoe", setting="S1").device_memory_gib == 10
    assert resolve(None, system="smoe", setting="S1", machine="local").device_memory_gib == 10
    other = resolve(None, system="smoe", setting="S1", machine="h100")
    assert other.device_memory_gib is None, "the budget is of the paper's card"
    daop = resolve(None, system="moe-ondemand", setting="D1")
    assert (daop.cache_ratio, daop.new_tokens, daop.precision) == (0.469, 512, "bf16")
    flash = resolve(None, system="moe-ondemand", setting="F2")
    assert (flash.free_host_gb, flash.cache_ratio, flash.new_tokens) == (1.0, 24 / 128, 64)
    assert resolve(None, system="moe-ondemand", setting="U1").precision == "4bit"


@pytest.mark.parametrize(
    ("setting", "given", "expected"),
    [
        ("U1", {}, (None, 2)),  # k slots, for every system
        ("U1", {"cache_ratio": 0.5}, (0.5, None)),
        ("U1", {"slots": 16}, (None, 16)),
        ("F1", {}, (0.375, None)),
        ("F1", {"slots": 100}, (None, 100)),
        ("S1", {"slots": 3}, (None, 3)),
    ],
)
def test_experts_on_the_device_are_given_one_way(
    setting: str, given: dict[str, Any], expected: tuple[float | None, int | None]
) -> None:
    spec = resolve(None, system="moe-ondemand", setting=setting, **given)
    assert (spec.cache_ratio, spec.slots) == expected


def test_experts_on_the_device_given_both_ways_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--capacity 0.5 and --slots 2: .*give one of them"):
        resolve(None, system="smoe", setting="S3", cache_ratio=0.5, slots=2)


@pytest.mark.parametrize(
    ("system", "given", "expected"),
    [
        ("smoe", {}, "0.25"),
        ("smoe", {"alpha": 0.0}, "0.0"),
        ("smoe", {"alpha": 0.4}, "0.4"),
        ("smoe", {"alpha": 0.123456789}, "0.123456789"),
        ("smoe", {"overrides": {"alpha": "0.5"}}, "0.5"),
        ("smoe", {"overrides": {"route": "exact"}}, None),
        ("smoe", {"overrides": {"evict": "lru"}}, "0.25"),
        ("moe-ondemand", {}, None),
        ("moe-ondemand", {"overrides": {"route": "expert-cache"}}, "0.25"),
        ("moe-ondemand", {"overrides": {"route": "expert-cache"}, "alpha": 0.1}, "0.1"),
    ],
)
def test_alpha(system: str, given: dict[str, Any], expected: str | None) -> None:
    """What was given comes before the setting, for a routing that has an α."""
    spec = resolve(None, system=system, setting="S3", **given)
    assert spec.overrides.get("alpha") == expected


def test_alpha_is_given_once() -> None:
    with pytest.raises(UsageError, match=r"--alpha 0.1 and --set alpha=0.5: give one of them"):
        resolve(None, system="smoe", setting="S3", alpha=0.1, overrides={"alpha": "0.5"})


@pytest.mark.parametrize(
    ("system", "swapped"), [("moe-ondemand", {}), ("smoe", {"route": "exact"})]
)
def test_alpha_is_never_silently_dropped(system: str, swapped: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="has no α"):
        resolve(None, system=system, setting="S3", alpha=0.2, overrides=swapped)


def test_the_default_workload_is_the_same_whatever_data_there_is(
    tmp_path: Path, here: Path
) -> None:
    """Also where a folder lies beside the current one."""
    for folder in (tmp_path / "data", here.parent / "shared" / "data"):
        (folder / "gsm8k").mkdir(parents=True)
        (folder / "gsm8k" / "test.jsonl").touch()
    specs = [resolve(data, system="smoe", setting="S3") for data in (None, tmp_path / "data")]
    assert [spec.workload for spec in specs] == ["passages", "passages"]
    assert find_data_dir(None) is None
    assert find_data_dir(tmp_path / "data") == tmp_path / "data"


@pytest.mark.parametrize("missing", ["model", "machine"])
def test_without_a_setting_model_and_machine_are_needed(missing: str) -> None:
    given = {"model": SCALE_MODEL, "machine": "a6000"}
    resolve(None, system="smoe", **given)
    del given[missing]
    with pytest.raises(UsageError, match=f"no {missing}: give --setting NAME or --{missing} NAME"):
        resolve(None, system="smoe", **given)


def test_specs_are_inert() -> None:
    spec = resolve(None, system="smoe", setting="S3")
    with pytest.raises(ValueError, match="frozen"):
        spec.batch = 2  # type: ignore[misc]
    with pytest.raises(ValueError, match="extra"):
        RunSpec(system="smoe", machine="a6000", model="m", workload="w", bacth=2)  # type: ignore[call-arg]


#: By name, what is given; the setting's own are in `S3`'s fields.
S3: dict[str, Any] = {"system": "smoe", "setting": "S3"}
BARE: dict[str, Any] = {"system": "smoe", "model": "mixtral-8x7b", "machine": "a6000"}
LOCAL: dict[str, Any] = {"system": "smoe", "setting": "S3", "machine": "local"}
NATIVE: dict[str, Any] = {"system": "native-accelerate", "setting": "S3", "machine": "local"}


@pytest.mark.parametrize(
    ("given", "more", "changed"),
    [
        (BARE, {}, {}),
        # Live where a scale model ships, or an option needs answers; drawn for all others.
        (BARE, {"model": "deepseek-v3"}, {"model": "deepseek-v3", "routing": "drawn"}),
        (BARE, {"model": "deepseek-v3", "routing": "model"}, {"model": "deepseek-v3"}),
        (BARE, {"model": "deepseek-v3", "reconstruct_scores": False},
         {"model": "deepseek-v3", "routing": "drawn"}),
        (BARE, {"model": "deepseek-v3", "scoring": "generation"},
         {"model": "deepseek-v3", "scoring": "generation", "new_tokens": 32}),
        (BARE, {"model": "deepseek-v3", "weights": "some//dir/"},
         {"model": "deepseek-v3", "weights": "some/dir"}),
        (S3, {"model": "deepseek-v3"}, {"model": "deepseek-v3"}),
        # An answer is as long as its workload allows, unless a length is given.
        (BARE, {"scoring": "generation"}, {"scoring": "generation", "new_tokens": 32}),
        (BARE, {"scoring": "generation", "new_tokens": 5},
         {"scoring": "generation", "new_tokens": 5}),
        (BARE, {"scoring": "fixed-length"}, {}),
        (BARE, {"batch": 5}, {"batch": 5, "prompts": 35}),
        (BARE, {"batch": 5, "prompts": 10}, {"batch": 5, "prompts": 10}),
        (BARE, {"quant": "Q4_K_M"}, {"quant": "q4_k_m"}),
        (BARE, {"machine": "./no//such"}, {"machine": "no/such"}),
        (BARE, {"routing": "drawn", "context": 9}, {"routing": "drawn", "context": 9}),
        (BARE, {"top_p": 0.5, "temperature": 0.5}, {"top_p": 0.5, "temperature": 0.5}),
        (BARE, {"clairvoyant": True}, {"clairvoyant": True}),
        (BARE, {"expert_dtype": "int4"}, {"expert_dtype": "int4"}),
        (BARE, {"few_shot": 3}, {"few_shot": 3}),
        (BARE, {"alpha": 0.30}, {"overrides": {"alpha": "0.3"}}),
        (BARE, {"overrides": {"evict.window": "08"}}, {"overrides": {"evict.window": "8"}}),
        (S3, {"variant": "shipped"}, {"variant": "shipped", "overrides": {}}),  # no paper's α
        (S3, {"variant": "shipped", "alpha": 0.2},
         {"variant": "shipped", "overrides": {"alpha": "0.2"}}),
        (S3, {"machine": "local"},
         {"machine": "local", "software": "lean"}),
        (LOCAL, {"page_cache": "keep"}, {"page_cache": "keep"}),
        (LOCAL, {"emulated_link_gb_s": 4.0}, {"emulated_link_gb_s": 4.0}),
        (NATIVE, {"scoring": "generation"},
         {"software": "native", "scoring": "generation", "new_tokens": 32}),
    ],
)  # fmt: skip
def test_what_follows_from_what_is_given(
    given: dict[str, Any], more: dict[str, Any], changed: dict[str, Any]
) -> None:
    s3 = {"software": "hf-eager", "model": "qwen2-57b-a14b", "precision": "bf16",
          "device_memory_gib": 41.56, "machine": "a6000"}  # fmt: skip
    known = {"workload": "passages", "prompts": 32, "new_tokens": 64} | given
    known = (s3 | known) if "setting" in given else known
    alpha = {"overrides": {"alpha": "0.25"}} if given in (S3, LOCAL) else {}
    lean = {"software": "lean"} if given in (LOCAL, BARE) else {}
    assert resolve(None, **given | more) == RunSpec(**known | alpha | lean | changed)


@pytest.mark.parametrize(
    ("given", "more", "says"),
    [
        (S3, {"calibrate_from": "nope"}, "unknown workload 'nope'; nearest: nq_open, winogrande"),
        (S3, {"variant": "nope"}, "--variant nope: allowed: published, shipped, earlier"),
        (S3, {"machine": " "}, "--machine ' ': expected a name or a path"),
        (S3, {"weights": "a\0b"}, "--weights 'a\\x00b': expected a name or a path"),
        (NATIVE, {"machine": None}, "--system native-accelerate: a package runs for real, on this "
         "computer alone (a6000); type: --machine local"),
        (NATIVE, {"machine": None, "setting": None, "model": "mixtral-8x7b"},
         "--system native-accelerate: a package runs for real, on this computer alone (no machine "
         "is named); type: --machine local"),
        (NATIVE, {"scoring": "likelihood"}, "--scoring likelihood and --system native-accelerate: "
         "a package is asked for tokens alone; allowed: fixed-length, generation"),
        (NATIVE, {"scoring": "prefill"}, "--scoring prefill and --system native-accelerate: "
         "a package is asked for tokens alone; allowed: fixed-length, generation"),
        (S3, {"routing": "x"}, "--routing x: allowed: model, replayed, drawn, real"),
        (LOCAL, {"software": "lean"}, "--software lean and --machine local: this computer is "
         "measured, with our own engine or a package itself"),
        (LOCAL, {"page_cache": "keep", "emulated_link_gb_s": 4.0},
         "--page-cache keep and --emulated-link: experts are in memory then; give one"),
        (LOCAL, {"clairvoyant": True}, "--clairvoyant and --machine local: the bounds follow from "
         "the costs of a profile; give another --machine (moebench list machines)"),
        (S3, {"page_cache": "keep"},
         "--page-cache keep: this computer is meant; add --machine local"),
        (BARE, {"routing": "drawn", "scoring": "generation"},
         "--scoring and --routing drawn: routing is replayed, nothing is computed"),
        (S3, {"reconstruct_scores": True},
         "--reconstruct-scores: a trace's scores are meant; give --trace DIR"),
        (S3, {"trace": "x", "routing": "drawn"}, "--routing drawn and --trace: give one of them"),
        (S3, {"quant": "q4_k_m", "precision": "bf16"}, "--quant q4_k_m and --precision bf16: both "
         "say in how many bits weights are stored; give one of them"),
        (S3, {"quant": "q4_k_m", "expert_dtype": "int8"}, "--quant q4_k_m and --expert-dtype int8: "
         "both say in how many bits weights are stored; give one of them"),
        (LOCAL, {"quant": "q4_k_m"}, "--quant q4_k_m and --machine local: this computer has no "
         "kernels of GGUF formats; give --expert-dtype int8 or int4, or another --machine"),
        (S3, {"quant": "file"}, "--quant file: qwen2-57b-a14b is no GGUF file; give --model "
         "FILE.gguf, or a format such as q4_k_m"),
        (S3, {"routing": "real"}, "--routing real: needs a data folder that holds recordings; give "
         "--data-dir DIR, or --routing drawn, which needs none"),
        (S3, {"batch": 5, "prompts": 7},
         "--prompts 7 does not fill batches of 5; allowed: multiples of 5"),
        (S3, {"batch": 0}, "--batch 0: Input should be greater than 0"),
        (S3, {"batch": -2}, "--batch -2: Input should be greater than 0"),
        (S3, {"data": "x"}, "--data x: Extra inputs are not permitted"),
        (S3, {"data_folder": "x"}, "--data-folder x: Extra inputs are not permitted"),
        (S3, {"context": 100}, "--context 100: a model that computes would have to read these "
         "tokens first; allowed with --routing replayed, drawn or real, or with --trace"),
        (S3, {"top_p": 0.5}, "--top-p 0.5: temperature 0 takes the likeliest token; give "
         "--temperature, above 0"),
        (S3, {"temperature": 0.5, "scoring": "likelihood"}, "--temperature 0.5 and --scoring "
         "likelihood: options are fed, no token is drawn; allowed: fixed-length, generation"),
        (S3, {"temperature": 0.5, "scoring": "prefill"}, "--temperature 0.5 and --scoring "
         "prefill: options are fed, no token is drawn; allowed: fixed-length, generation"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(
    given: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    with pytest.raises(MoeBenchError) as caught:
        resolve(None, **given | more)
    assert str(caught.value) == says


@pytest.fixture
def seven_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace ``seven`` of seven texts, of 1 to 7 passes."""
    header = SimpleNamespace(model="mixtral-8x7b", workload="facts")
    trace = SimpleNamespace(sequences=[0] * 7, passes=lambda n: n + 1, header=header)
    monkeypatch.setattr(catalogue, "find_trace", lambda name: f"found {name}")
    monkeypatch.setattr(file, "open_trace", {"found seven": trace}.__getitem__)


@pytest.mark.parametrize(
    ("given", "prompts", "new_tokens"),
    [
        ({}, 7, 7),  # the setting's 64 are more than it has
        ({"batch": 2}, 6, 7),
        ({"batch": 2, "prompts": 4, "new_tokens": 6}, 4, 6),
        ({"batch": 7, "prompts": 7, "new_tokens": 7}, 7, 7),
        ({"setting": None, "machine": "a6000"}, 7, 7),
    ],
)
def test_a_replay_is_as_long_as_its_trace(
    seven_texts: None, given: dict[str, Any], prompts: int, new_tokens: int
) -> None:
    spec = resolve(None, **S3 | {"trace": "seven"} | given)
    assert (spec.prompts, spec.new_tokens, spec.workload) == (prompts, new_tokens, "facts")
    assert spec.model == ("mixtral-8x7b" if spec.setting is None else "qwen2-57b-a14b")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"prompts": 8}, "--prompts 8: seven holds 7 prompts"),
        ({"prompts": 8, "batch": 2}, "--prompts 8: seven holds 6 prompts"),
        ({"new_tokens": 8}, "--new-tokens 8: seven holds 7 new tokens"),
        ({"batch": 8}, "--batch 8: seven holds 7 prompts"),
        ({"batch": 0}, "--batch 0: Input should be greater than 0"),
    ],
)
def test_a_replay_of_more_than_its_trace_holds_is_refused(
    seven_texts: None, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(None, **S3 | {"trace": "seven"} | given)
    assert str(caught.value) == says


def test_a_gguf_file_is_charged_its_own_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "is_gguf", lambda model: True)
    for more, quant in (
        ({}, OWN_BITS), ({"precision": "bf16"}, None), ({"expert_dtype": "int8"}, None),
        ({"machine": "local"}, None), ({"quant": "q4_k_m"}, "q4_k_m"),
        ({"quant": "file"}, OWN_BITS),
    ):  # fmt: skip
        assert resolve(None, **BARE | more).quant == quant
