"""Prompts of a run as token ids: tokenizer, chat template, and one form per scoring mode."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from moebench.results.spec import RunSpec, Scoring
from moebench.substrate.errors import CheckpointError, UsageError
from moebench.substrate.files import brief, read_mapping, read_text, require_file
from moebench.substrate.models.catalogue import is_computed, scale_names, scale_path
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.workloads.catalogue import workload
from moebench.workloads.draw import PromptSet, load
from moebench.workloads.example import END_OF_TEXT, Example
from moebench.workloads.likelihood import continuations
from moebench.workloads.prompts import build_prompt, split_cue
from moebench.workloads.workload import Workload

# ----------------------------------------------------------------------------- texts


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A Jinja template that formats a prompt as a user's turn.

    Attributes:
        where: the file that holds it.
        tokens: special tokens that it may name, ``bos_token`` for example.
    """

    where: Path
    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def turn(self, question: str) -> str:
        """Return the formatted prompt up to the start of the model's answer.

        Raises CheckpointError: the template cannot be rendered.
        """
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        given: dict[str, Any] = {
            "conversations": [[{"role": "user", "content": question}]],
            "chat_template": self.source, "add_generation_prompt": True, **self.tokens,
        }  # fmt: skip
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
    """Tokenizer, end token and chat template of a checkpoint.

    Attributes:
        end: the token that ends a text; None where the files name none.
        template: what questions are put into; None leaves them as they are.
    """

    tokenizer: Tokenizer
    end: int | None
    template: ChatTemplate | None = None

    def prompt(self, question: str) -> list[int]:
        """Return the token ids of a whole prompt, with the tokenizer's initial special tokens."""
        if self.template is None:
            return self._ids(question, first=True)
        return self._ids(self.template.turn(question), first=False)

    def split(self, question: str) -> tuple[list[int], list[int]]:
        """Split a prompt at its cue into token ids to prefill and to feed through decode."""
        before, cue = split_cue(question)
        if self.template is None:
            return self._ids(before, first=True), self._ids(cue, first=False)
        turn = self.template.turn(question)
        at = turn.rfind(question)
        # A template may strip or quote what it is given.
        cut = len(split_cue(turn)[0]) if at < 0 else at + len(before)
        return self._ids(turn[:cut], first=False), self._ids(turn[cut:], first=False)

    def plain(self, text: str) -> list[int]:
        """Return the token ids of a plain text, with the tokenizer's initial special tokens."""
        return self._ids(text, first=True)

    def further(self, text: str) -> list[int]:
        """Return the token ids of a text that continues another."""
        return self._ids(text, first=False)

    def _ids(self, text: str, first: bool) -> list[int]:
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=first).ids
        return found


def read_texts(folder: Path, plain: bool = False) -> Texts:
    """Read a folder's tokenizer, and its chat template unless ``plain``.

    Raises CheckpointError: there is no tokenizer, or a file is broken.
    """
    tokenizer = read_tokenizer(folder)
    config = _read(folder / "tokenizer_config.json")
    template = None if plain else _template(folder, config)
    return Texts(tokenizer, _end(folder, config, tokenizer), template)


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read a folder's tokenizer.

    Raises CheckpointError: it is missing or broken.
    """
    file = folder / "tokenizer.json"
    if not file.exists():
        raise CheckpointError(
            f"{file}: missing; a run needs the model's tokenizer, as transformers' "
            "AutoTokenizer.save_pretrained writes it"
        )
    require_file(file, CheckpointError)
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more precise
        raise CheckpointError(f"{file}: not a tokenizer that can be read ({error})") from error


def _template(folder: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
    """Return the default chat template of a folder, from its own file or the configuration."""
    tokens = {name: text for name in config if name.endswith("_token")
              if (text := _content(config[name])) is not None}  # fmt: skip
    file = folder / "chat_template.jinja"
    if file.exists():
        require_file(file, CheckpointError)
        return ChatTemplate(file, read_text(file, CheckpointError), tokens)
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {one.get("name"): one.get("template") for one in source if isinstance(one, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    return ChatTemplate(folder / "tokenizer_config.json", source, tokens)


def _content(token: object) -> str | None:
    """Return the text of a special token, which may be an object with a ``content``."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _end(folder: Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> int | None:
    """Return the end token; of several, the one that the tokenizer names."""
    named = _content(config.get("eos_token"))
    by_tokenizer = None if named is None else tokenizer.token_to_id(named)
    for file in ("generation_config.json", "config.json"):
        ends = _read(folder / file).get("eos_token_id")
        ends = ends if isinstance(ends, list) else [ends]
        for end in ends:
            if end is not None and (type(end) is not int or end < 0):
                raise CheckpointError(
                    f"{folder / file}: eos_token_id is {brief(end)}; allowed: token ids from 0, or "
                    "null"
                )
        if by_tokenizer is not None and by_tokenizer in ends:
            return by_tokenizer
        if ends and isinstance(ends[0], int):
            return ends[0]
    return tokenizer.token_to_id(END_OF_TEXT) if by_tokenizer is None else by_tokenizer


def _read(file: Path) -> Mapping[str, Any]:
    if not file.exists():
        return {}
    require_file(file, CheckpointError)
    return read_mapping(file, CheckpointError)


# ----------------------------------------------------------------------------- questions


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt as token ids, with the continuations that decode is fed.

    Attributes:
        prompt: what is prefilled.
        cue: how each continuation begins: the part of the prompt that decode reads.
        continuations: what decode is forced to take: the cue alone where the model writes its
            answer, the cue and an option's text where options are weighed.
        counted: for each continuation, the place of its first token whose likelihood counts.
    """

    prompt: list[int]
    cue: list[int] = field(default_factory=list)
    continuations: tuple[list[int], ...] = ([],)
    counted: tuple[int, ...] = (0,)
    texts: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        """Number of tokens of the prompt and its longest continuation."""
        return len(self.prompt) + max(map(len, self.continuations))


def question_of(
    scoring: Scoring, chosen: Workload, example: Example, shots: Sequence[Example], texts: Texts
) -> Question:
    """Return an example as token ids for a scoring mode; see `harness.run.live`.

    A chat template is used where the model writes.  Where the likelihoods of given texts are asked
    for, they go on from the plain question.
    """
    if scoring == "fixed-length":
        return Question(texts.prompt(build_prompt(chosen, example, shots)))
    if scoring == "generation":
        prefilled, cue = texts.split(build_prompt(chosen, example, shots))
        return Question(prefilled, cue, (cue,))
    if chosen.metric == "perplexity":  # all of a text but its first token is its continuation
        first, *rest = texts.plain(example.prompt)
        return Question([first], [], (rest,), (0,), (example.prompt,))
    asked = continuations(chosen, example, shots)
    prompt, cue_text = (asked.prompt, "") if scoring == "prefill" else split_cue(asked.prompt)
    read = texts.further(cue_text)
    options = tuple([*read, *texts.further(text)] for text in asked.texts)
    counted = tuple(
        len(read) + len(texts.further(text[:uncounted]))
        for text, uncounted in zip(asked.texts, asked.uncounted, strict=True)
    )
    return Question(texts.plain(prompt), read, options, counted, asked.texts)


def prompts_to_draw(spec: RunSpec, data_dir: Path | None) -> tuple[PromptSet, list[Question]]:
    """Return the prompts of a run whose routing is drawn, with their token ids.

    Without a scale model of the run's, they are counted by the tokenizer that all scale models
    have.

    Raises MoeBenchError: there are no such prompts, or no tokenizer.
    """
    names = scale_names()
    known = spec.model in names or not names
    folder = weights_path(spec) if known else scale_path(names[0])
    return questions_of(spec, data_dir, read_texts(folder, spec.plain_prompts))


def questions_of(
    spec: RunSpec, data_dir: Path | None, texts: Texts
) -> tuple[PromptSet, list[Question]]:
    """Draw a run's examples and return them with their token ids.

    Raises InputError: there are no such examples.
    """
    chosen, sample, shots = drawn(spec, data_dir)
    questions = [
        question_of(spec.scoring, chosen, example, shots, texts) for example in sample.examples
    ]
    return sample, questions


def drawn(spec: RunSpec, data_dir: Path | None) -> tuple[Workload, PromptSet, tuple[Example, ...]]:
    """Return a run's workload, its examples, and the worked examples before each question.

    Raises InputError: there are no such examples.
    """
    chosen = workload(spec.workload)
    sample = load(chosen, count=spec.prompts, seed=spec.seed, data_dir=data_dir)
    if not spec.few_shot:
        return chosen, sample, ()
    return chosen, sample, load(chosen, "train", spec.few_shot, spec.seed, data_dir).examples


def check_questions(
    spec: RunSpec, sample: PromptSet, questions: list[Question], checkpoint: Checkpoint
) -> None:
    """Refuse prompts that the checkpoint's vocabulary or positions cannot hold.

    Raises:
        CheckpointError: the tokenizer gives tokens that the model does not know.
        UsageError: a prompt is longer than the model's positions.
    """
    shape = checkpoint.shape
    for example, question in zip(sample.examples, questions, strict=True):
        highest = max(max(ids, default=0) for ids in (question.prompt, *question.continuations))
        if highest >= shape.vocab_size:
            raise CheckpointError(
                f"{checkpoint.path}: tokenizer.json gives token {highest}, the model knows "
                f"{shape.vocab_size}; the two do not belong together"
            )
        if question.length + spec.new_tokens > shape.max_positions:
            raise UsageError(
                f"{sample.source}: {example.id} has {question.length} tokens, with "
                f"{spec.new_tokens} new ones more than the model's {shape.max_positions} "
                "positions; choose another workload or fewer --new-tokens"
            )


def weights_path(spec: RunSpec) -> Path:
    """Return the folder of a run's weights: the given one, or the scale model's.

    Raises UsageError: none is given, and the model has no scale model.
    """
    if spec.weights is not None:
        return Path(spec.weights)
    if spec.model not in scale_names():
        ours = ", ".join(scale_names())
        instead = "give real weights with --weights DIR, or --routing drawn"
        if not is_computed(spec.model):
            instead = (
                "its shape is known, and no forward pass: replay routing with --trace DIR (record, "
                "import or synthesize it: moebench trace --help), or give --routing drawn"
            )
        raise UsageError(
            f"no scale model of {spec.model} ships yet (there is one of: {ours}); {instead}"
        )
    return scale_path(spec.model)
