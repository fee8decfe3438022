"""lm-eval on moebench systems: every response equals that of its own Hugging Face backend."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.evaluate.lm_eval_tasks import check, write_tasks
from moebench.harness.evaluate.run import about
from moebench.harness.evaluate.session import prepare_evaluated, resolve_evaluated
from moebench.harness.evaluate.tasks import Questions, draw
from moebench.reports.sections.evaluations import lines
from moebench.results.store import Store
from moebench.substrate.errors import UsageError
from moebench.substrate.models import catalogue
from tests.harness.commands import SCALE_MODEL, call
from tests.harness.evaluate.data import write_data
from tests.harness.evaluate.sessions import responding

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install '.[eval]'")

pytestmark = pytest.mark.usefixtures("tiny_models")

TASKS = ("gsm8k", "triviaqa", "arc_easy", "winogrande", "passages", "text")
MAX_LENGTH = 512


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "sets")


@pytest.fixture(scope="module")
def asked(data: Path) -> list[Questions]:
    return draw(TASKS, 3, 0, "0", "S3", data)


@pytest.fixture(scope="module")
def tasks(asked: list[Questions], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("tasks")
    write_tasks(asked, folder)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            patch.setenv(name, "1")
        yield folder


def evaluated(lm: Any, tasks: Path, names: Sequence[str] = TASKS, **options: Any) -> Any:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    return simple_evaluate(
        model=lm, tasks=list(names), task_manager=manager, bootstrap_iters=1, **options
    )


def scale_folder() -> Path:
    return Path(os.environ[catalogue.FOLDER_VARIABLE]) / "scale" / SCALE_MODEL


@pytest.fixture(scope="module")
def reference(tiny_models: None, tasks: Path) -> Any:
    """Return lm-eval's results with its own backend on the same checkpoint."""
    import torch
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    model = AutoModelForCausalLM.from_pretrained(scale_folder(), dtype=torch.float32)
    end = "<|endoftext|>"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(scale_folder() / "tokenizer.json"), eos_token=end, pad_token=end
    )
    lm = HFLM(
        pretrained=model, tokenizer=tokenizer, batch_size=2, max_length=MAX_LENGTH - 1, device="cpu"
    )
    return evaluated(lm, tasks)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "batch"), [("decode", 1), ("prefill", 3)])
def test_responses_equal_those_of_lm_evals_hugging_face_backend(
    mode: str, batch: int, tasks: Path, reference: Any
) -> None:
    from moebench.harness.evaluate.lm_eval_model import RespondingLM

    with responding(mode, batch=batch, max_length=MAX_LENGTH) as session:
        found = evaluated(RespondingLM(session), tasks)
    for name in TASKS:
        ours, theirs = found["samples"][name], reference["samples"][name]
        assert len(ours) == len(theirs) > 0
        for one, other in zip(ours, theirs, strict=True):
            assert one["doc"] == other["doc"]
            assert one["arguments"] == other["arguments"]
            for mine, yours in zip(one["resps"], other["resps"], strict=True):
                assert same(mine[0], yours[0]), (name, one["doc_id"])
        figures, expected = found["results"][name], reference["results"][name]
        assert figures.keys() == expected.keys()
        for key, value in figures.items():
            assert value == (
                pytest.approx(expected[key], rel=1e-4)
                if isinstance(value, float)
                else expected[key]
            ), key
    assert session.responder.requests["generated"] == 9
    assert session.responder.truncated == 0


def same(mine: Any, yours: Any) -> bool:
    """Check that texts and greedy choices are equal, and likelihoods up to rounding."""
    if isinstance(mine, str):
        return bool(mine == yours)
    if isinstance(mine, float):
        return bool(mine == pytest.approx(yours, abs=2e-3))
    return bool(mine[0] == pytest.approx(yours[0], abs=1e-3) and mine[1] == yours[1])


@pytest.mark.slow
def test_a_right_answer_is_right_and_a_wrong_one_wrong(tasks: Path, asked: list[Questions]) -> None:
    """Of every kind of task: whoever knows the answers gets all of them."""
    from lm_eval.api.model import LM

    class Oracle(LM):
        def __init__(self, knows: bool) -> None:
            super().__init__()
            self._knows = knows

        def generate_until(self, requests: Any) -> list[str]:
            told = [request.doc["answers"][-1] for request in requests]
            return [f" so.\n#### {one}" if one.isdigit() else f" {one}" for one in told
                    ] if self._knows else ["x" for _ in told]  # fmt: skip

        def loglikelihood(self, requests: Any) -> list[tuple[float, bool]]:
            best = 0.0 if self._knows else -99.0
            return [(best if r.idx == r.doc["gold"] else -9.0, False) for r in requests]

        def loglikelihood_rolling(self, requests: Any) -> list[float]:
            return [-8.0 * len(request.args[0].encode()) for request in requests]

    for knows in (True, False):
        found = evaluated(Oracle(knows), tasks)["results"]
        for name in TASKS[:-1]:
            figures = {k: v for k, v in found[name].items() if "," in k and "_stderr" not in k}
            assert set(figures.values()) == {float(knows)}, (name, figures)
        assert found["text"]["bits_per_byte,none"] == pytest.approx(8 / 0.6931471805599453)


@pytest.mark.slow
def test_answers_come_from_lm_evals_cache(tasks: Path, tmp_path: Path) -> None:
    from moebench.harness.evaluate.lm_eval_model import RespondingLM

    found = []
    for _ in range(2):
        with responding("prefill", max_length=MAX_LENGTH) as session:
            cache = str(tmp_path / "answers")
            names = ("gsm8k", "arc_easy", "text")
            found.append(evaluated(RespondingLM(session), tasks, names, use_cache=cache))
    assert found[0]["results"] == found[1]["results"]
    assert session.responder.generations == []


def test_lm_eval_builds_the_model_from_its_own_arguments(tasks: Path) -> None:
    from moebench.harness.evaluate import lm_eval_model

    given = (
        "system=smoe,setting=S3,alpha=0.25,mode=prefill,max_length=256,set=evict=lru;prefetch=none"
    )
    found = evaluated("moebench", tasks, ["arc_easy"], model_args=given, batch_size=2)
    document = found["config"]["moebench"]
    spec = document["spec"]
    assert (spec["system"], spec["batch"], spec["alpha"]) == ("smoe", 2, 0.25)
    assert spec["options"]["evict"] == "lru"
    assert document["metrics"]["ttft_ms"]["mean"] > 0
    with pytest.raises(UsageError, match="--nonsense 1: Extra inputs are not permitted"):
        lm_eval_model.MoeBenchLM.create_from_arg_string("system=smoe,setting=S3,nonsense=1")
    with pytest.raises(UsageError, match="prompts: an evaluator chooses its questions"):
        lm_eval_model.MoeBenchLM("smoe", setting="S3", prompts=3)
    with pytest.raises(UsageError, match="batch_size=auto: allowed: a number"):
        lm_eval_model.MoeBenchLM("smoe", batch_size="auto", setting="S3")


def run(data: Path, *more: str | Path) -> Any:
    called = call(
        "eval", "--engine", "lm-eval", "--tasks", "arc_easy,passages", "--system", "smoe",
        "--setting", "S3", "--prompts", "2", "--data-dir", data, "--json", *more,
    )  # fmt: skip
    assert called.code == 0, called.err
    return called


@pytest.mark.slow
def test_an_evaluation_is_stored_and_stands_beside_our_own_score(data: Path) -> None:
    called = run(data)
    document = called.json
    found = document["evaluation"]
    assert (found["evaluator"], found["version"]) == ("lm-eval", lm_eval.__version__)
    assert [task["task"] for task in found["tasks"]] == ["arc_easy", "passages"]
    arc, _ = found["tasks"]
    assert [metric["name"] for metric in arc["metrics"]] == ["acc", "acc_norm"]
    assert all(len(metric["items"]) == arc["n"] == 2 for metric in arc["metrics"])
    assert arc["metrics"][0]["guessing"] == 0.25
    assert len(arc["task_hash"]) == 64
    assert document["metrics"]["tpot_ms"]["mean"] > 0
    assert document["accuracy"]["agreement"] <= 1
    assert document["spec"]["workload"] == "lm-eval: arc_easy, passages"
    assert Store(Path(".moebench")).get(document["run_id"]) == document
    again = run(data)
    assert again.json == document
    assert "was stored; --force evaluates again" in again.err
    assert not any(Path(".moebench/evaluations").iterdir())

    own = call(
        "run", "--system", "smoe", "--setting", "S3", "--workload", "arc_easy", "--scoring",
        "likelihood", "--prompts", "2", "--no-interval", "--data-dir", data, "--json",
    ).json  # fmt: skip
    rows = lines(Store(Path(".moebench")).runs())
    assert [row[6] for row in rows] == ["arc_easy", "arc_easy", "passages"]
    score = own["accuracy"]
    assert rows[1][-1] == f"{score['score']:.4g} ± {score['stderr']:.2g} (likelihood)"
    assert 100 * arc["metrics"][1]["value"] == score["score"]  # per byte and per character: ASCII
    assert "lm-eval" not in call("compare", "--json").out
    page = Path("report.html")
    assert call("report", "--html", page).code == 0
    assert "<h2>Evaluators</h2>" in page.read_text()
    assert call("report", "--csv", Path("tables")).code == 0
    assert "arc_easy" in Path("tables/evaluations.csv").read_text()


def test_the_id_follows_from_what_is_asked(data: Path) -> None:
    def named(version: str = "1", mode: str = "decode", max_length: int = 64, **drawn: Any) -> str:
        spec = resolve_evaluated(None, mode, system="smoe", setting="S3")
        session = prepare_evaluated(spec, None, max_length)
        what = {"count": 2, "seed": 0, "few_shot": "0"} | drawn
        asked = draw(["arc_easy"], **what, setting="S3", data_dir=data)
        return about(session, "lm-eval", version, asked).run_id

    assert named() == named()
    others = [
        named(version="2"), named(mode="prefill"), named(max_length=65), named(seed=1),
        named(count=3), named(few_shot="1"),
    ]  # fmt: skip
    assert len({named(), *others}) == 7


def test_task_files_are_for_lm_evals_own_command(data: Path) -> None:
    called = call(
        "eval", "--engine", "lm-eval", "--tasks", "gsm8k", "--few-shot", "1", "--system", "smoe",
        "--prompts", "2", "--data-dir", data, "--task-files", "files",
    )  # fmt: skip
    assert called.code == 0
    assert "--include_path files --tasks gsm8k" in called.err
    (first, _) = [json.loads(line) for line in Path("files/gsm8k.jsonl").read_text().splitlines()]
    assert first["query"].count("Answer:") == 2  # one few-shot example
    assert Path("files/gsm8k.yaml").exists()
    assert not Path(".moebench").exists()


def test_what_lm_eval_cannot_score_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "alpaca").mkdir()
    record = {"id": "1", "prompt": "Hello", "choices": None, "answer": "x", "answers": None,
              "split": "test"}  # fmt: skip
    (tmp_path / "alpaca" / "test.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(UsageError, match="lm-eval's metrics cannot score its answers"):
        check(draw(["alpaca"], 1, 0, "0", None, tmp_path))
