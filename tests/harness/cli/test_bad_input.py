"""Whatever a user gets wrong: one line that helps, exit code 2, and nothing is written."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file, save_file

from moebench.harness.run import questions
from moebench.harness.settings import settings
from moebench.substrate.machines.profile import MACHINES
from moebench.substrate.models.catalogue import scale_path
from moebench.systems.options import build
from tests.harness.commands import SCALE_MODEL, SMALL, call

pytestmark = pytest.mark.usefixtures("tiny_models")

SMOE = ("run", "--system", "smoe", *SMALL)


@pytest.fixture(autouse=True)
def no_run(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """All of this shows before a single token is computed."""
    from moebench.substrate.engine.loop import Engine

    def refuse(*_: Any) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr(Engine, "generate", refuse)


def snapshot(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(*arguments: str | Path) -> str:
    """The one line, after checking that it is one and that nothing changed."""
    before = snapshot(Path.cwd())
    called = call(*arguments)
    assert called.code == 2, called
    assert called.out == ""
    assert called.err.startswith("moebench: ")
    assert called.err.count("\n") == 1
    assert called.err.endswith("\n")
    assert "Traceback" not in called.err
    assert snapshot(Path.cwd()) == before
    return called.err


# --------------------------------------------------------------------------- names and options


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*SMOE, "--system", "smeo"), r"unknown system 'smeo'; nearest: smoe, .*list systems"),
        ((*SMOE, "--system", "zzz"), r"known: .*daop, .*gpu-only, .*smoe"),
        ((*SMOE, "--setting", "S33"), r"unknown setting 'S33'; .*S3.*list settings"),
        ((*SMOE, "--machine", "a600"), r"unknown machine 'a600'; nearest: .*a6000"),
        ((*SMOE, "--workload", "gsm8"), r"unknown workload 'gsm8'; nearest: gsm8k"),
        ((*SMOE, "--model", "qwen2-57b"), r"unknown model 'qwen2-57b'; nearest: qwen2-57b-a14b"),
        ((*SMOE, "--set", "evict=lruu"), r"unknown evict policy 'lruu'; nearest: .*lru"),
        ((*SMOE, "--set", "evikt=lru"), r"unknown option 'evikt'; nearest: evict"),
        ((*SMOE, "--set", "alhpa=1"), r"unknown option 'alhpa'; nearest: alpha"),
        (
            (*SMOE, "--set", "route.alpha=0.3"),
            r"unknown option 'route.alpha'; .*option of the system itself: --set alpha=VALUE",
        ),
        ((*SMOE, "--set", "evict.threshold=3"), r"'evict.threshold'; nearest: evict.window"),
        ((*SMOE, "--set", "prefetch.experts=2"), r"unknown option 'prefetch.experts'"),
        ((*SMOE, "--set", "prefetch=none", "--set", "prefetch.alpha=0.2"), r"unknown option"),
        (("rnu",), r"No such command 'rnu'.*run"),
        ((*SMOE, "--new-token", "3"), r"No such option: --new-token.*--new-tokens"),
        ((*SMOE, "--frobnicate"), r"No such option: --frobnicate.*; see: moebench --help"),
        ((*SMOE, "S3"), r"unexpected extra argument"),
        (("list", "sytems"), r"sytems.*systems.*settings"),
        (("list",), r"(?i)missing argument"),
        (("run", "--setting", "S3"), r"Missing option '--system'"),
        (("run", "--system", "smoe"), r"no model: give --setting NAME or --model NAME"),
        (("run", "--system", "smoe", "--model", SCALE_MODEL), r"no machine: .*--machine NAME"),
        (
            ("run", "--system", "smoe", "--model", SCALE_MODEL, "--machine", "local"),
            r"--machine local: how many experts .* give --capacity, --slots, or --setting",
        ),
        (
            ("run", "--system", "accelerate", "--setting", "S3", "--machine", "local"),
            r"hooks of their modules, but accelerate has module_hooks=true; allowed: --set",
        ),
        (("report", "--store", "nowhere"), r"no runs in nowhere; run: moebench run"),
    ],
)
def test_names(arguments: tuple[str, ...], says: str) -> None:
    assert re.search(says, refused(*arguments))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--batch", "three"), r"'--batch'.*integer"),
        (("--batch", "0"), r"--batch 0: .*greater than 0"),
        (("--batch", "1025"), r"--batch 1025: .*1024"),
        (("--seed", "-1"), r"--seed -1: .*0"),
        (("--prompts", "0"), r"--prompts 0: .*greater than 0"),
        (("--prompts", "1.5"), r"'--prompts'"),
        (("--new-tokens", "-1"), r"--new-tokens -1: .*greater than 0"),
        (("--new-tokens", "many"), r"'--new-tokens'"),
        (("--seed", "x"), r"'--seed'"),
        (("--precision", "int3"), r"--precision int3: .*'bf16'.*'4bit'"),
        (("--capacity", "1.5"), r"--capacity 1.5: .*less than or equal to 1"),
        (("--capacity", "0"), r"--capacity 0.0: .*greater than 0"),
        (("--capacity", "nan"), r"--capacity nan: .*finite"),
        (("--capacity", "half"), r"'--capacity'"),
        (("--alpha", "1.5"), r"alpha is 1.5; allowed: 0 to 1"),
        (("--alpha", "-0.1"), r"alpha is -0.1; allowed: 0 to 1"),
        (("--alpha", "nan"), r"--alpha nan: expected a finite number"),
        (("--free-host-gb=-inf",), r"--free-host-gb -inf: expected a finite number"),
        (("--set", "evict.window=999999999999"), r"evict\.window is .*; allowed: 0 to 4096"),
        (
            ("--system", "moe-infinity", "--set", "prefetch.capacity=999999999999"),
            r"prefetch\.capacity is .*; allowed: 1 to 10000",
        ),
        (("--set", "alpha=2"), r"alpha is 2.0; allowed: 0 to 1"),
        (("--set", "route=exact", "--set", "alpha=0.2"), r"alpha=0.2: route=exact has no α"),
        (("--alpha", "much"), r"'--alpha'"),
        (("--alpha", "0.2", "--set", "alpha=0.3"), r"--alpha 0.2 and --set .*one of them"),
        (("--alpha", "0.2", "--set", "route=exact"), r"--alpha: smoe with route=exact has no α"),
        (("--system", "moe-ondemand", "--alpha", "0.2"), r"--alpha: moe-ondemand .* has no α"),
        (("--set", "evict"), r"--set evict: expected key=value, for example --set evict=lru"),
        (("--set", "=lru"), r"--set =lru: expected key=value"),
        (("--set", "evict="), r"--set evict=: expected key=value"),
        (("--set", "scope=slice"), r"--set scope=slice: .*'global' or 'layer'"),
        (("--set", "route.pick=worst"), r"--set route.pick=worst: .*'best' or 'id'"),
        (("--set", "route.refine=perhaps"), r"--set route.refine=perhaps: .*boolean"),
        (("--set", "assign.history=0"), r"assign.history is 0; allowed: 1 to 64"),
        (("--set", "evict=static", "--set", "evict.staging=0"), r"evict.staging is 0; allowed: 1"),
    ],
)
def test_values(options: tuple[str, ...], says: str) -> None:
    assert re.search(says, refused(*SMOE, *options))


# --------------------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("options", "says"),
    [
        # 0.04 of 32 experts is 1; one token of one layer uses 2.
        (("--capacity", "0.04"), r"room for 1 experts.* pins 2.*larger --capacity"),
        (("--capacity", "0.1", "--set", "scope=layer"), r"room for 3 experts.* 4 layers needs one"),
        (("--capacity", "0.9"), r"29 experts .* do not fit: .*smaller --capacity"),
        (("--machine", "rtx3080ti"), r"device memory: .*needs .* GB.*is free"),
        (("--machine", "local", "--capacity", "0.04"), r": local memory: room for 1 experts"),
    ],
)
def test_memory(options: tuple[str, ...], says: str) -> None:
    assert re.search(says, refused(*SMOE, *options))


# --------------------------------------------------------------------------- hardware files

Change = Callable[[dict[str, Any]], object]


def hardware(change: Change) -> str:
    """The a6000's profile with a change, as a file of the user's."""
    profile = yaml.safe_load((MACHINES / "a6000.yaml").read_text())
    change(profile)
    Path("box.yaml").write_text(yaml.safe_dump(profile))
    return "box.yaml"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: p["gpu"]["memory"].update(value=8, unit="GB"), r"device memory: common weights"),
        (lambda p: p["gpu"]["bandwidth"].update(value=-768), r"gpu.bandwidth: .*-768.*allowed"),
        (lambda p: p["gpu"]["bandwidth"].pop("unit"), r"gpu.bandwidth.unit: missing; .*GB/s"),
        (lambda p: p["link"].pop("pinned_h2d"), r"link.pinned_h2d: missing"),
        (lambda p: p["host"]["handoff"].update(unit="W"), r"host.handoff: 'W' is not a unit of"),
        (lambda p: p.update(extra=1), r"extra: unknown field"),
        (lambda p: p["gpu"].update(memory=48), r"gpu.memory: expected a mapping, got 48"),
    ],
)
def test_hardware_files(change: Change, says: str) -> None:
    line = refused(*SMOE, "--machine", hardware(change))
    assert re.search(says, line)


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "cannot be read"), ("", "expected a mapping"), ("a: [", "not valid YAML")],
)
def test_files_that_are_no_hardware(text: str | None, says: str) -> None:
    if text is not None:
        Path("box.yaml").write_text(text)
    line = refused(*SMOE, "--machine", "box.yaml")
    assert "box.yaml" in line
    assert says in line


# --------------------------------------------------------------------------- checkpoints


@pytest.fixture
def weights(here: Path) -> Path:
    """A copy of the scale model that may be broken."""
    folder = here / "weights"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_bytes((scale_path(SCALE_MODEL) / name).read_bytes())
    return folder


def change_tensors(folder: Path, change: Change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


EXPERT = "model.layers.3.mlp.experts.5.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop(EXPERT), rf"tensor {EXPERT} is missing"),
        (lambda t: t.update({EXPERT: t[EXPERT][:-1].clone()}), rf"tensor {EXPERT} has shape"),
        (lambda t: t.pop("lm_head.weight"), r"tensor lm_head.weight is missing"),
    ],
)
def test_tensors(weights: Path, change: Change, says: str) -> None:
    change_tensors(weights, change)
    assert re.search(says, refused(*SMOE, "--weights", weights))


def edit_json(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def small_vocabulary(folder: Path) -> None:
    """Weights of fewer tokens than the tokenizer knows."""
    edit_json(folder / "config.json", vocab_size=8)
    names = ("model.embed_tokens.weight", "lm_head.weight")
    change_tensors(folder, lambda t: t.update({name: t[name][:8].clone() for name in names}))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda d: (d / "model.safetensors").unlink(), r"holds no .safetensors file"),
        (
            lambda d: (d / "model.safetensors").write_bytes(
                (d / "model.safetensors").read_bytes()[:-1000]
            ),
            r"model.safetensors: truncated or not safetensors",
        ),
        (lambda d: (d / "model.safetensors").write_bytes(b""), r"truncated or not safetensors"),
        (
            lambda d: (d / "model.safetensors.index.json").write_text('{"weight_map": 3}'),
            r"not a safetensors index",
        ),
        (
            lambda d: (d / "model.safetensors.index.json").write_text(
                '{"weight_map": {"lm_head.weight": "gone.safetensors"}}'
            ),
            r"gone.safetensors: named by model.safetensors.index.json but missing",
        ),
        (lambda d: (d / "config.json").write_text("{"), r"config.json: not valid JSON"),
        (lambda d: (d / "config.json").write_text("[]"), r"config.json: expected a JSON object"),
        (lambda d: (d / "config.json").write_bytes(b"\xff\xfe{}"), r"config.json: not UTF-8 text"),
        (lambda d: (d / "config.json").unlink(), r"config.json: cannot be read"),
        (lambda d: edit_json(d / "config.json", model_type="gpt2"), r"model_type 'gpt2' is not"),
        (lambda d: edit_json(d / "config.json", num_hidden_layers="x"), r"config.json: "),
        (lambda d: edit_json(d / "config.json", num_experts_per_tok=9), r"top_k 9 exceeds"),
        (lambda d: edit_json(d / "config.json", num_experts_per_tok=4), r"top_k is 4, .* has 2"),
        (lambda d: edit_json(d / "config.json", norm_topk_prob=True), r"gate is .*renorm"),
        (lambda d: edit_json(d / "config.json", hidden_size=32), r"has shape .*demands"),
        (lambda d: (d / "tokenizer.json").unlink(), r"tokenizer.json: missing"),
        (lambda d: (d / "tokenizer.json").write_text("{"), r"tokenizer.json: not a tokenizer"),
        (lambda d: (d / "tokenizer.json").write_text("{}"), r"tokenizer.json: not a tokenizer"),
        (lambda d: (d / "tokenizer.json").write_bytes(b"\xff"), r"tokenizer.json: not a tok"),
        (small_vocabulary, r"tokenizer.json gives token \d+, the model knows 8"),
    ],
)
def test_checkpoints(weights: Path, spoil: Callable[[Path], object], says: str) -> None:
    spoil(weights)
    assert re.search(says, refused(*SMOE, "--weights", weights))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("mixtral-8x7b", r"family is qwen2_moe, the full-size model has mixtral"),
        ("qwen1.5-moe-a2.7b", r"num_layers is 4, the full-size model has 24"),
    ],
)
def test_weights_of_another_model(model: str, says: str) -> None:
    line = refused(*SMOE, "--model", model, "--weights", scale_path(SCALE_MODEL))
    assert re.search(says, line)
    assert "only widths, positions and vocabulary may differ" in line


def test_weights_that_are_nowhere() -> None:
    assert "nowhere: no such directory" in refused(*SMOE, "--weights", "nowhere")


@pytest.mark.parametrize("name", sorted(settings()))
def test_settings_without_a_scale_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = settings()[name].model
    monkeypatch.setattr(questions, "scale_names", lambda: ["the-only-one"])
    line = refused("run", "--system", "moe-ondemand", "--setting", name)
    assert f"no scale model of {model} ships" in line
    assert "the-only-one" in line
    assert "--weights DIR" in line


@pytest.mark.parametrize(
    ("model", "name", "instead"),
    [
        ("DeepSeek-R1 671B", "deepseek-v3", "no forward pass: replay routing with --trace DIR"),
        ("qwen3.5-35b-a3b", "qwen3.5-35b-a3b", "replay routing with --trace DIR"),
        ("gpt-oss-120b", "gpt-oss-120b", "give real weights with --weights DIR"),
        ("GLM-4.5-Air", "glm-4.5-air", "give real weights with --weights DIR"),
    ],
)
def test_live_run_of_a_shape_without_a_scale_model(model: str, name: str, instead: str) -> None:
    live = ("--model", model, "--machine", "a6000", "--scoring", "generation")
    line = refused("run", "--system", "moe-ondemand", *live)
    assert f"no scale model of {name} ships" in line
    assert instead in line


def test_damaged_gguf_file_as_a_model(here: Path) -> None:
    (here / "m.gguf").write_bytes(b"GGUF")
    line = refused("run", "--system", "moe-ondemand", "--model", "m.gguf", "--machine", "a6000")
    assert "m.gguf: ends inside its header (at byte 4); download it again" in line


# --------------------------------------------------------------------------- data


@pytest.fixture
def data(here: Path) -> Callable[..., Path]:
    """Writes lines as GSM8K's test questions; returns the data folder."""

    def write(*lines: str) -> Path:
        (here / "data" / "gsm8k").mkdir(parents=True)
        (here / "data" / "gsm8k" / "test.jsonl").write_text("\n".join(lines) + "\n")
        return here / "data"

    return write


def question(name: str, prompt: str = "What is 1 + 1?") -> str:
    record = {"id": name, "prompt": prompt, "choices": None, "answer": "2", "answers": None}
    return json.dumps(record | {"split": "test"})


GSM8K = (*SMOE, "--workload", "gsm8k")


@pytest.mark.parametrize(
    ("lines", "options", "says"),
    [
        ((question("a"), "{not json"), (), r"test.jsonl:2: "),
        ((question("a"), question("a")), (), r'test.jsonl:2: id "a" was already used'),
        ((question("a"), '{"id": "b"}'), (), r"test.jsonl:2: .*prompt"),
        ((question("a"), question("b")), ("--prompts", "3"), r"3 prompts wanted, 2 available"),
        ((question("a", "one two " * 3000),), (), r"a has \d+ tokens.*2048 positions"),
        ((question("a"),), ("--new-tokens", "2048"), r"2048 new ones .* 2048 positions"),
        ((question("a"),), ("--workload", "mmlu"), r"mmlu: no such folder"),
    ],
)
def test_data(
    data: Callable[..., Path], lines: tuple[str, ...], options: tuple[str, ...], says: str
) -> None:
    assert re.search(says, refused(*GSM8K, "--data-dir", data(*lines), *options))


def test_no_data_folder() -> None:
    assert re.search(r"gsm8k needs a data folder; give --data-dir", refused(*GSM8K))
    assert "--data-dir nowhere: no such folder" in refused(*GSM8K, "--data-dir", "nowhere")


# --------------------------------------------------------------------------- places to write


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--timeline", "missing/trace.json"), r"--timeline .*no such folder missing"),
        (("--timeline", "folder"), r"--timeline folder: this is a folder"),
        (("--store", "file"), r"file is not a folder; give another --store"),
        (("--store", "file/below/it"), r"file is not a folder; give another --store"),
        (("--store", "file", "--machine", "local"), r"file is not a folder"),
        (("--store", "damaged"), r"damaged.* or not a moebench store"),
    ],
)
def test_places(here: Path, options: tuple[str, ...], says: str) -> None:
    (here / "folder").mkdir()
    (here / "file").write_text("in the way")
    (here / "damaged").mkdir()
    (here / "damaged" / "runs.sqlite").write_bytes(b"no database" * 500)
    assert re.search(says, refused(*SMOE, *options))


ROOFS = ("--model", "mixtral-8x7b", "--machine", "a6000")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("sweep", "plan.yaml", "--store", "file"), "--store file: file is not a folder"),
        (("search", "--store", "file"), "--store file: file is not a folder"),
        (("search", "--out", "file/x.yaml"), "file is not a folder; give another place"),
        (("reproduce", "daop", "--store", "file"), "--store file: file is not a folder"),
        (("reproduce", "daop", "--out", "file"), "--out file: file is not a folder"),
        (("reproduce", "daop", "--figures", "file"), "--figures file: file is not a"),
        (("accuracy", "--out", "folder"), "--out folder: this is a folder; give a file in it"),
        (("accuracy", "--out", "file/x.csv"), "file is not a folder; give another place"),
        (("machines", "roofline", *ROOFS, "--svg", "file/x.svg"), "/file is not a folder"),
        (("machines", "roofline", *ROOFS, "--svg", "x.png"), "allowed: a name that ends in .svg"),
        (("report", "--html", "folder"), "--html folder: this is a folder; give a file in it"),
        (("advise", "--html", "no/x.html"), "--html no/x.html: no such folder no"),
        (("advise", "--html", "folder"), "--html folder: this is a folder; give a file in it"),
        (("advise", "--setting", "S3", "--tpot-ms", "9", "--store", "file"), "--store file: file"),
        (("validate", "--published", "--html", "no/x.html"), "--html no/x.html: no such folder no"),
        (("validate", "--published", "--out", "no/x.json"), "--out no/x.json: no such folder no"),
        (("validate", "--add-row", "no/x.csv"), "--add-row no/x.csv: no such folder no"),
        (("validate", "--add-row", "x.txt"), "the name of a file of rows ends in .csv"),
    ],
)  # fmt: skip
def test_places_of_other_commands(here: Path, arguments: tuple[str, ...], says: str) -> None:
    (here / "folder").mkdir()
    (here / "file").write_text("in the way")
    plan = {"common": {"setting": "S3"}, "product": {"system": ["smoe"]}}
    (here / "plan.yaml").write_text(json.dumps(plan))
    assert says in refused(*arguments)


def test_a_store_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """The superuser may write anywhere, so the system's answer is replaced."""
    from moebench.harness import arguments

    monkeypatch.setattr(arguments.os, "access", lambda *_: False)
    assert "is not writable; give another --store" in refused(*SMOE)


def test_what_the_system_refuses_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from moebench.harness import one_run

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(one_run, "prepare", full)
    assert "No space left on device" in refused(*SMOE)


@pytest.mark.parametrize("option", ["--tpot-ms=inf", "--tpot-ms=NaN", "--accuracy-loss=Infinity"])
def test_advice_takes_finite_numbers(here: Path, option: str) -> None:
    name, _, value = option.partition("=")
    said = call("advise", "--setting", "S3", name, value)
    assert (said.code, said.err) == (2, f"moebench: {name} {value}: expected a finite number\n")


@pytest.mark.parametrize(
    ("system", "option", "allowed"),
    [("flashmoe", "evict.hidden", "2 to 8192"), ("flashmoe", "evict.epochs", "1 to 100000"),
     ("duoserve", "prefetch.width", "64 to 65536"),
     ("promoe", "prefetch.trained_width", "1 to 8192")],
)  # fmt: skip
def test_sizes_of_networks_have_limits(here: Path, system: str, option: str, allowed: str) -> None:
    least, most = allowed.split(" to ")
    for value in (int(least) - 1, int(most) + 1, 10**12):
        said = call("run", "--system", system, *SMALL, "--set", f"{option}={value}")
        assert said.code == 2
        assert f"{option} is {value}; allowed: {allowed}" in said.err
    for value in (least, most):
        build(system, {option: value})


def test_a_sweep_s_record_is_a_command(here: Path) -> None:
    plan = {"common": {"setting": "S3"}, "product": {"system": ["smoe"]}, "record": [1]}
    Path("plan.yaml").write_text(json.dumps(plan))
    said = call("sweep", "plan.yaml", "--dry-run")
    assert said.code == 2
    assert "plan.yaml: record is [1]; allowed: a command, as text" in said.err
