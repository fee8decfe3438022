"""What a checkpoint's own files say of texts: its tokenizer, its chat template, how a text ends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from moebench.substrate.errors import CheckpointError
from moebench.substrate.files import read_mapping
from moebench.workloads.example import END_OF_TEXT
from moebench.workloads.prompts import split_cue


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A Jinja template that makes a user's turn of a question.

    Attributes:
        where: the file that holds it.
        tokens: special tokens that it may name, ``bos_token`` for example.
    """

    where: Path
    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def turn(self, question: str) -> str:
        """The question as the model reads it, up to where its answer begins.

        Raises:
            CheckpointError: the template cannot be rendered.
        """
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        given: dict[str, Any] = {
            "conversations": [[{"role": "user", "content": question}]],
            "chat_template": self.source,
            "add_generation_prompt": True,
            **self.tokens,
        }
        try:
            rendered: Any = render_jinja_template(**given)
        except (TemplateError, TypeError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise CheckpointError(
                f"{self.where}: its chat template cannot be rendered ({first}); leave it out with "
                "--plain-prompts"
            ) from error
        text: str = rendered[0][0]
        return text


@dataclass(frozen=True, slots=True)
class Texts:
    """How questions become token ids.

    Attributes:
        end: the token that ends a text; None where the files name none.
        template: what questions are put into; None leaves them as they are.
    """

    tokenizer: Tokenizer
    end: int | None
    template: ChatTemplate | None = None

    def prompt(self, question: str) -> list[int]:
        """A whole prompt, what a tokenizer puts before texts included."""
        if self.template is None:
            return self._ids(question, first=True)
        return self._ids(self.template.turn(question), first=False)

    def split(self, question: str) -> tuple[list[int], list[int]]:
        """A prompt as what is prefilled and what decode is fed: from its cue on."""
        before, cue = split_cue(question)
        if self.template is None:
            return self._ids(before, first=True), self._ids(cue, first=False)
        turn = self.template.turn(question)
        at = turn.rfind(question)
        # A template may strip or quote what it is given.
        cut = len(split_cue(turn)[0]) if at < 0 else at + len(before)
        return self._ids(turn[:cut], first=False), self._ids(turn[cut:], first=False)

    def plain(self, text: str) -> list[int]:
        """The beginning of a text that is no question."""
        return self._ids(text, first=True)

    def further(self, text: str) -> list[int]:
        """A text that goes on from another."""
        return self._ids(text, first=False)

    def _ids(self, text: str, first: bool) -> list[int]:
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=first).ids
        return found


def read_texts(folder: Path, plain: bool = False) -> Texts:
    """A folder's tokenizer, and its chat template unless prompts are to be plain.

    Raises:
        CheckpointError: there is no tokenizer, or a file is broken.
    """
    tokenizer = read_tokenizer(folder)
    config = _read(folder / "tokenizer_config.json")
    template = None if plain else _template(folder, config)
    return Texts(tokenizer, _end(folder, config, tokenizer), template)


def read_tokenizer(folder: Path) -> Tokenizer:
    """A folder's tokenizer.

    Raises:
        CheckpointError: it is missing or broken.
    """
    file = folder / "tokenizer.json"
    if not file.exists():
        raise CheckpointError(
            f"{file}: missing; a run needs the model's tokenizer, as transformers' "
            "AutoTokenizer.save_pretrained writes it"
        )
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more precise
        raise CheckpointError(f"{file}: not a tokenizer that can be read ({error})") from error


def _template(folder: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
    """Of a file of its own, or of the tokenizer's configuration; of several the default one."""
    tokens = {name: text for name in config if name.endswith("_token")
              if (text := _content(config[name])) is not None}  # fmt: skip
    file = folder / "chat_template.jinja"
    if file.exists():
        return ChatTemplate(file, file.read_text(encoding="utf-8"), tokens)
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {one.get("name"): one.get("template") for one in source if isinstance(one, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    return ChatTemplate(folder / "tokenizer_config.json", source, tokens)


def _content(token: object) -> str | None:
    """A special token is a text, or an object that holds one."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _end(folder: Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> int | None:
    """Of several that a model may end with, the one that its tokenizer names."""
    named = _content(config.get("eos_token"))
    by_tokenizer = None if named is None else tokenizer.token_to_id(named)
    for file in ("generation_config.json", "config.json"):
        ends = _read(folder / file).get("eos_token_id")
        ends = ends if isinstance(ends, list) else [ends]
        if by_tokenizer is not None and by_tokenizer in ends:
            return by_tokenizer
        if ends and isinstance(ends[0], int):
            return ends[0]
    return tokenizer.token_to_id(END_OF_TEXT) if by_tokenizer is None else by_tokenizer


def _read(file: Path) -> Mapping[str, Any]:
    if not file.exists():
        return {}
    return read_mapping(file, CheckpointError)
