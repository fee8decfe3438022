"""Runs of third-party packages: documents, refusals, and real packages."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from moebench.harness.native.run import prepare
from moebench.harness.run.accuracy import Accuracy
from moebench.harness.run.rules import resolve
from moebench.harness.sweep.execute import run_all
from moebench.harness.sweep.worker import group_of
from moebench.results.samples import read_samples
from moebench.results.store import Store
from moebench.substrate.models.catalogue import MODELS
from moebench.substrate.models.shared import SharedWork
from moebench.systems.native.operators import ALWAYS, FROM_NVME, built
from moebench.systems.registry import NATIVE
from moebench.workloads.catalogue import workload
from tests.harness.commands import SMALL, call, refused
from tests.harness.tiny import write_scale
from tests.systems.native import fake as fake_package
from tests.systems.native.fake import TOKEN

pytestmark = pytest.mark.usefixtures("tiny_models")

LOCAL = ("--machine", "local")


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register two fake packages for the tests."""
    # The registry names modules of `moebench.systems`.
    monkeypatch.setitem(sys.modules, "moebench.systems.fake", fake_package)
    for name in ("fake", "absent"):
        row = ("fake", name.capitalize(), "does as it is told")
        monkeypatch.setitem(NATIVE, f"native-{name}", row)


def run(system: str, *arguments: str | Path) -> dict[str, Any]:
    called = call("run", "--system", system, *SMALL, *LOCAL, "--json", *arguments)
    assert called.code == 0, called.err
    document: dict[str, Any] = called.json
    return document


# ----------------------------------------------------------------------- the document


def test_unknown_metrics_of_a_package_are_null() -> None:
    document = run("native-fake", "--prompts", "4", "--batch", "2")
    assert document["badge"] == "measured"
    assert (document["simulated"], document["interval"]) == (False, None)
    assert document["measured"]["model"] == "qwen2-57b-a14b's scale model, 0.0289 M parameters"
    assert document["measured"]["batches"] == 2
    metrics = document["metrics"]
    for name in ("cache_ratio", "cache_ratio_begun", "experts", "prefetch", "bytes_h2d",
                 "bytes_disk", "peak_device_bytes", "energy_j", "host_memory"):  # fmt: skip
        assert metrics[name] is None
    assert metrics["lanes"] == metrics["stall_ms"] == {}
    assert document["bound"] == {"tpot_ms": None, "ratio": None}
    assert metrics["decoded_tokens"] == 4 * 2
    assert metrics["tpot_ms"]["mean"] > 0
    assert metrics["ttft_ms"]["mean"] > 0
    assert metrics["load_ms"] > 0
    assert metrics["process"]["peak_rss_bytes"] > 1e6
    assert document["memory"]["limit_bytes"] is None
    assert document["spec"]["options"]["does"] == "answer"
    assert document["spec"]["slots"] is document["spec"]["cache_ratio"] is None
    assert document["provenance"]["profile"] is None
    assert any("a batch of 2" in note for note in document["notes"])
    samples = read_samples(Path(".moebench"), document["run_id"])
    assert [(s.batch, s.step, s.active) for s in samples or []] == [
        (b, s, None) for b in range(2) for s in range(3)
    ]


def test_package_run_is_listed_and_reported(here: Path) -> None:
    run("native-fake")
    listed = {row["system"]: row["what"] for row in call("list", "systems", "--json").json}
    assert listed["native-fake"] == "does as it is told"
    shown = call("run", "--system", "native-fake", *SMALL, *LOCAL)
    assert "ms [measured on qwen2-57b-a14b's scale model" in shown.out
    assert "peak memory of its process" in shown.out
    assert "cache ratio" not in shown.out
    report = call("report", "--html", "out.html", "--csv", "tables")
    assert report.code == 0, report.err
    assert "<title>moebench report: 2 runs<" in (here / "out.html").read_text()
    assert ",native," in (here / "tables" / "runs.csv").read_text()


def test_compared_with_our_own_what_differs_is_named() -> None:
    run("native-fake")
    run("moe-ondemand")
    # What it was offered is not known, and its software is its own.
    assert "--mixed" in refused("compare")
    table = call("compare", "--mixed", "device-memory,host-memory,software", "--markdown")
    assert table.code == 0, table.err
    (line,) = [line for line in table.out.splitlines() if line.startswith("| native-fake")]
    assert [line.split("|")[at] for at in (4, 6, 7, 8, 9)] == [" – "] * 5


@pytest.mark.slow
def test_a_sweep_runs_it_beside_systems() -> None:
    base = {"setting": "S3", "machine": "local", "workload": "arithmetic", "prompts": 2,
            "new_tokens": 3}  # fmt: skip
    names = ("native-fake", "moe-ondemand", "native-fake")
    overrides = ({}, {}, {"threads": "2"})
    specs = [
        resolve(None, system=n, overrides=o, **base) for n, o in zip(names, overrides, strict=True)
    ]
    assert group_of(specs[0]) == group_of(specs[2]) != group_of(specs[1])
    documents = run_all(specs, None, Path(".moebench"), 0, lambda done, total: None)
    assert [d["spec"]["system"] for d in documents] == list(names)
    assert documents[2]["spec"]["options"]["threads"] == "2"


def test_agreement_counts_tokens_where_logits_are_not_known() -> None:
    spec = resolve(None, system="native-fake", setting="S3", machine="local", prompts=2,
                   workload="arithmetic", new_tokens=4)  # fmt: skip
    session = prepare(spec, None)
    shared = SharedWork(session.weights.checkpoint)
    prompt = session.questions[0].prompt
    text = [TOKEN]
    for _ in range(3):  # greedy, from the second token on
        (logits,) = shared.lossless([[*prompt, *text]], [len(prompt) + len(text) - 1])
        text.append(int(logits[-1].argmax()))
    wrong = [*text[:2], (text[2] + 1) % 300, text[3]]
    accuracy = Accuracy(workload(spec.workload), session.sample.examples)
    accuracy.answered(slice(0, 2), [text, wrong], None)
    accuracy.compare(slice(0, 1), shared, [prompt], [text], None)
    assert accuracy.document()["items"]["agreed"] == [3, 0]
    accuracy.compare(slice(1, 2), shared, [prompt], [wrong], None)
    found = accuracy.document()
    assert found["items"]["agreed"][1] < 3
    assert found["items"]["decoded"] == [3, 3]
    assert found["kl"] is None
    assert found["items"]["kl"] == [None, None]
    session.close()


def test_the_limit_of_a_local_run_is_its_weights() -> None:
    given = {"setting": "S3", "machine": "local", "workload": "arithmetic", "prompts": 1,
             "new_tokens": 3, "cache_ratio": 0.5}  # fmt: skip
    spec = resolve(None, system="native-fake", overrides={"memory_limit": "local"}, **given)
    session = prepare(spec, None)
    shape = session.weights.checkpoint.shape
    experts = len(shape.moe_layers) * shape.num_experts * shape.expert_params
    common = shape.total_params - experts
    kv = session.longest * shape.kv_bytes_per_token()
    assert session.limit_bytes() == 4 * (common + experts // 2) + kv
    session.close()


def test_a_limit_is_said_in_the_document() -> None:
    document = run("native-fake", "--set", "memory_limit=80MB")
    memory = document["memory"]
    assert memory["limit_bytes"] == 80_000_000
    assert memory["limited_by"] in ("cgroup", "rlimit")
    assert memory["page_cache_limited"] == (memory["limited_by"] == "cgroup")
    assert any("limited to 80 MB beside its libraries" in note for note in document["notes"])


# ----------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), r"a package runs for real, on this computer alone (a6000); type: --machine local"),
        ((*LOCAL, "--alpha", "0.3"), "--alpha and --system native-fake: a package runs by itself"),
        ((*LOCAL, "--variant", "shipped"), "--variant shipped: native-fake has none"),
        ((*LOCAL, "--set", "evict=lru"), "unknown option 'evict'"),
        ((*LOCAL, "--set", "does=sing"), "--set does=sing: "),
        ((*LOCAL, "--set", "memory_limit=much"), "memory_limit is much; allowed: a size such as"),
        ((*LOCAL, "--set", "threads=0"), "threads is 0; allowed: 1 or more"),
        ((*LOCAL, "--setting", "S9"), "unknown setting 'S9'"),
        ((*LOCAL, "--trace", "a"), "--trace and --system native-fake"),
        ((*LOCAL, "--routing", "drawn"), "--routing and --system native-fake"),
        ((*LOCAL, "--scoring", "likelihood"), "a package is asked for tokens alone"),
        ((*LOCAL, "--emulated-link", "4GB/s"), "--emulated-link and --system native-fake"),
        ((*LOCAL, "--page-cache", "keep"), "--page-cache and --system native-fake"),
        ((*LOCAL, "--timeline", "a.json"), "a package that shows no lanes"),
        ((*LOCAL, "--software", "lean"), "--software lean and --machine local"),
        ((*LOCAL, "--set", "does=fail"), "native-fake: RuntimeError: out of luck; all of it: "),
        ((*LOCAL, "--set", "loads=false"), "native-fake: ValueError: the model cannot be loaded"),
    ],
)
def test_options_without_effect_on_a_package_are_refused(
    arguments: tuple[str, ...], line: str
) -> None:
    assert line in refused("run", "--system", "native-fake", *SMALL, *arguments)
    assert Store(Path(".moebench")).runs() == []


def test_a_package_that_is_not_installed_says_how_to_install_it() -> None:
    line = refused("run", "--system", "native-absent", *SMALL, *LOCAL)
    assert line.endswith("no-such-package not installed; type: pip install 'moebench[native]'")


def test_doctor_refuses_a_package() -> None:
    line = refused("doctor", "--system", "native-fake")
    assert "moebench run --system native-fake --machine local" in line


@pytest.mark.parametrize(
    ("name", "model", "batch", "reason"),
    [
        ("native-accelerate", "xverse-moe-a4.2b", 1, "Transformers has no class for XVERSE-MoE"),
        ("native-deepspeed", "xverse-moe-a4.2b", 1, "Transformers has no class for XVERSE-MoE"),
        ("native-llamacpp", "xverse-moe-a4.2b", 1, "llama.cpp's xverse has no experts"),
        ("native-llamacpp", "phi-3.5-moe", 1, "with a softmax gate"),
        ("native-llamacpp", "qwen2-57b-a14b", 2, "at most 1 sequence at once, 2 were asked for"),
    ],
)
def test_unsupported_models_and_batches_are_refused_with_reason(
    name: str, model: str, batch: int, reason: str
) -> None:
    line = refused("run", "--system", name, "--model", model, *LOCAL, "--batch", str(batch))
    assert reason in line


# ----------------------------------------------------------------------- real packages


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory, tiny_models: None) -> Path:
    """Write the tiny model with experts so wide that DeepSpeed moves a layer's to the disk."""
    config = json.loads((MODELS / "qwen2-57b-a14b.json").read_text())
    config |= {"num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 4}
    folder = tmp_path_factory.mktemp("wide") / "wide"
    widths = {"moe_intermediate_size": 2048, "shared_expert_intermediate_size": 16}
    write_scale(folder, config, widths)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "overrides", "batch", "said"),
    [
        ("accelerate", {}, 2, "hooks bring 12.65 MB"),
        ("accelerate", {"read": "mmap", "max_memory": "3MB"}, 1, "Accelerate maps"),
        ("accelerate", {"offload": "cpu"}, 1, "moves nothing where the CPU computes"),
        ("accelerate", {"offload": "none"}, 1, "Transformers alone"),
        ("deepspeed", {}, 2, "MB of weights are on the disk (9"),
        ("deepspeed", {"offload": "cpu"}, 1, "by a copy within memory"),
        ("llamacpp", {}, 1, "llama.cpp maps its file"),
        ("llamacpp", {"mmap": "false", "kv": "f16"}, 1, "reads all of its file first"),
    ],
)
def test_a_real_package_writes_the_resident_models_tokens(
    package: str, overrides: dict[str, str], batch: int, said: str, wide: Path
) -> None:
    module = {"llamacpp": "llama_cpp"}.get(package, package)
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed: make native")
    if package == "deepspeed" and not built(ALWAYS if overrides else ALWAYS + FROM_NVME):
        pytest.skip("DeepSpeed's operators are not compiled: make native")
    given = [item for pair in overrides.items() for item in ("--set", "=".join(pair))]
    document = run(
        f"native-{package}", "--weights", wide, "--prompts", str(batch), "--batch", str(batch),
        "--new-tokens", "6", *given,
    )  # fmt: skip
    assert document["accuracy"]["agreement"] == 1
    assert document["lossless"] == (overrides.get("kv") != "f16")
    assert any(said in note for note in document["notes"]), document["notes"]
    assert document["metrics"]["decoded_tokens"] == 5 * batch
    assert document["provenance"]["versions"][module] is not None
    assert torch.get_num_threads() == document["provenance"]["threads"] == 1
