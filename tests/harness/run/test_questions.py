"""A checkpoint's own tokenizer, chat template and end, beside transformers' reading of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from moebench.harness.run.questions import read_texts
from moebench.harness.scale.text import train_tokenizer
from moebench.substrate.errors import CheckpointError
from moebench.substrate.models.catalogue import scale_path
from moebench.workloads.example import END_OF_TEXT
from tests.harness.commands import call
from tests.substrate.models.checkpoints import make_checkpoint

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{{ message['content'] | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
QUESTION = "Where is the cup?\nAnswer:"
SPECIAL = ["<s>", "<|user|>", "<|assistant|>", "<|end|>"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer that begins texts with a token of its own, as Llama's and Mixtral's do."""
    tokenizer = train_tokenizer(["Where is the cup?", "Answer: shop"], 300)
    tokenizer.add_special_tokens(SPECIAL)
    start = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", start)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, bos_token={"content": "<s>"}, eos_token="<|end|>")
    return tmp_path


def write(folder: Path, **config: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def theirs(folder: Path, **options: Any) -> list[int]:
    """The same question by transformers."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", chat_template=TEMPLATE
    )
    message = {"role": "user", "content": QUESTION}
    ids = tokenizer.apply_chat_template(
        [message], add_generation_prompt=True, return_dict=False, **options
    )
    return list(ids)


@pytest.mark.parametrize("where", ["a file", "the configuration", "one of several"])
def test_a_question_is_what_transformers_makes_of_it(where: str, folder: Path) -> None:
    tokens = {"bos_token": {"content": "<s>"}}
    if where == "a file":
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    elif where == "the configuration":
        write(folder, chat_template=TEMPLATE, **tokens)
    else:
        named = {"tool_use": "{{ raise_exception('not this') }}", "default": TEMPLATE}
        listed = [{"name": name, "template": text} for name, text in named.items()]
        write(folder, chat_template=listed, **tokens)
    texts = read_texts(folder)
    assert texts.prompt(QUESTION) == theirs(folder)
    before, cue = texts.split(QUESTION)
    assert [*before, *cue] == theirs(folder)
    # What decode is fed begins with the question's own cue, and ends where the answer begins.
    read = texts.tokenizer.decode(cue, skip_special_tokens=False)
    assert read.startswith("\nAnswer:")
    assert read.endswith("<|assistant|>\n")


def test_plain_prompts_begin_once(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    texts = read_texts(folder, plain=True)
    start = texts.tokenizer.token_to_id("<s>")
    assert texts.prompt(QUESTION) == texts.tokenizer.encode(QUESTION).ids
    before, cue = texts.split(QUESTION)
    assert [*before, *cue].count(start) == 1
    assert before[0] == start
    assert start not in texts.further("shop")


@pytest.mark.parametrize(
    ("files", "end"),
    [
        ({}, "<|end|>"),
        ({"config.json": [1, 2]}, 1),
        ({"config.json": 5}, 5),
        ({"config.json": 5, "generation_config.json": 7}, 7),
        ({"generation_config.json": [9, "<|end|>"]}, "<|end|>"),
    ],
)
def test_a_text_ends_as_the_files_say(files: dict[str, Any], end: Any, folder: Path) -> None:
    tokenizer = read_texts(folder).tokenizer

    def number(token: Any) -> Any:
        return tokenizer.token_to_id(token) if isinstance(token, str) else token

    for name, ends in files.items():
        found = [number(e) for e in ends] if isinstance(ends, list) else number(ends)
        (folder / name).write_text(json.dumps({"eos_token_id": found}))
    assert read_texts(folder).end == number(end)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "cannot be rendered"),
    ],
)
def test_a_template_that_fails_is_named(template: str, says: str, folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(CheckpointError, match=rf"chat_template\.jinja: .*{says}.*--plain-prompts"):
        read_texts(folder).prompt(QUESTION)


def test_a_run_uses_the_template_unless_told_otherwise(folder: Path) -> None:
    make_checkpoint(folder, "olmoe", vocab_size=320, max_position_embeddings=2048)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    run = (
        "run", "--system", "moe-ondemand", "--weights", folder, "--machine", "a6000",
        "--workload", "arithmetic", "--prompts", "1", "--new-tokens", "2", "--capacity", "0.5",
        "--scoring", "generation", "--no-interval", "--json",
    )  # fmt: skip
    documents = []
    for option in ((), ("--plain-prompts",)):
        called = call(*run, *option)
        assert called.code == 0, called.err
        documents.append(called.json)
    chat, plain = documents
    assert chat["run_id"] != plain["run_id"]
    assert chat["accuracy"]["agreement"] == plain["accuracy"]["agreement"] == 1.0
    told = [[n for n in d["notes"] if n.startswith("prompts of ")] for d in documents]
    assert len(told[0]) == len(told[1]) == 1
    assert told[0] != told[1]


def test_a_scale_model_says_how_a_text_ends_in_its_config_alone() -> None:
    texts = read_texts(scale_path("qwen2-57b-a14b"))
    assert texts.end is not None
    assert texts.end == texts.tokenizer.token_to_id(END_OF_TEXT)
