"""Measure a scale model's quality and routing statistics, and compare with its manifest."""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from moebench.harness.scale.files import read_tokenizer
from moebench.harness.scale.text import HELD_OUT_TEXT
from moebench.substrate.analysis.statistics import summary
from moebench.substrate.analysis.targets import judge, targets, value_at
from moebench.substrate.errors import InputError
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.resident import ResidentExperts
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.observe import margins, read, write
from moebench.workloads.catalogue import workload
from moebench.workloads.draw import load
from moebench.workloads.example import END_OF_TEXT, Example, ask_and_answer
from moebench.workloads.exercises import FAMILIES, exercises
from moebench.workloads.prompts import build_prompt
from moebench.workloads.scoring import is_correct

#: Test exercises of each family; a quick check runs the first `QUICK` of them.
QUESTIONS, QUICK = 100, 32
#: A generated token is unsure if its margin over the second likeliest is below this many nats.
UNSURE = 1.0
#: Texts of the statistics: ``WINDOWS`` windows per family, and as many in total of prose, each of
#: ``WINDOW`` tokens, half of which are the prompt.
WINDOWS, WINDOW = 8, 256

#: Floating-point sums differ between machines: this share of answers may change (at least 2).
ANSWERS_TOLERANCE = 0.05
#: A statistic may differ by this much, or by this share of its value.
STATISTICS_TOLERANCE = 0.02

#: Accuracy of guessing.  Two families have four options; in two, a guess is never right; a guess
#: for a passage is one of the places that it mentions.
_CHANCE = {"equations": 0.25, "facts": 0.25, "inflection": 0.0, "arithmetic": 0.0}


@dataclass(frozen=True, slots=True)
class ScaleModel:
    """A scale model loaded in fp32 with every expert in memory."""

    path: Path
    decoder: Decoder
    tokenizer: Tokenizer

    @classmethod
    def open(cls, path: Path) -> "ScaleModel":
        """Load the scale model in a folder whose file hashes were checked.

        Raises CheckpointError: a file or tensor is missing, truncated or has a wrong shape.
        """
        checkpoint = Checkpoint(path)
        experts = ResidentExperts(checkpoint, torch.float32)
        decoder = Decoder(checkpoint.shape, checkpoint.common(torch.float32), experts)
        checkpoint.close()
        return cls(path, decoder, read_tokenizer(path))


def measure(
    model: ScaleModel, data_dir: Path | None, quick: bool, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Return the accuracy of each exercise family at α = 0, and routing statistics.

    Returns:
        ``accuracy`` by family: share of right answers, its standard error, n, chance, which were
        right ("1") or wrong ("0"), the median ``margin`` in nats between the likeliest token and
        the next over the generated tokens, and the share of ``unsure`` tokens, whose margin is
        below one nat; ``statistics`` of held-out exercises and, with a data folder, of prose.
    """
    torch.set_num_threads(1)  # as in runs: reproducible sums, and more threads are not faster
    count = QUICK if quick else QUESTIONS
    total = len(FAMILIES) + 1 + (data_dir is not None)
    steps = itertools.count(1)
    accuracy = {}
    for family in FAMILIES:
        accuracy[family] = _accuracy(model, family, count)
        progress(next(steps), total)
    texts = {"exercises": [t for f in FAMILIES for t in _windows(model, _documents(f), WINDOWS)]}
    if data_dir is not None:
        texts[HELD_OUT_TEXT.removesuffix(".txt")] = _windows(
            model, iter([_prose(data_dir)]), WINDOWS * len(FAMILIES)
        )
    statistics = {}
    for source, windows in texts.items():
        statistics[source] = summary(_routing(model, windows), model.decoder.shape.num_experts)
        progress(next(steps), total)
    return {"accuracy": accuracy, "statistics": statistics}


def _accuracy(model: ScaleModel, family: str, count: int) -> dict[str, Any]:
    chosen = workload(family)
    asked = load(chosen, count=QUESTIONS).examples[:count]
    prompts = [model.tokenizer.encode(build_prompt(chosen, example)).ids for example in asked]
    stop = model.tokenizer.token_to_id(END_OF_TEXT)
    # The first batch equals a quick check's only batch, so that both compute the same bits.
    batches = [prompts[:QUICK], prompts[QUICK:]] if count > QUICK else [prompts]
    written: list[str] = []
    by_batch = []
    for batch in batches:
        texts = write(model.decoder, batch, chosen.max_new_tokens, stop)
        written += map(model.tokenizer.decode, texts)
        by_batch.append(margins(model.decoder.history, [len(tokens) for tokens in texts]))
    right = [is_correct(chosen, e, text) for e, text in zip(asked, written, strict=True)]
    margin = np.concatenate(by_batch)
    share = sum(right) / count
    return {
        "score": round(share, 4), "stderr": round(math.sqrt(share * (1 - share) / count), 4),
        "n": count, "chance": round(_CHANCE.get(family, chance_of_mentioned(asked)), 4),
        "margin": round(float(np.median(margin)), 2) if len(margin) else None,
        "unsure": round(float(np.mean(margin < UNSURE)), 4) if len(margin) else None,
        "answers": "".join("01"[flag] for flag in right),
    }  # fmt: skip


def chance_of_mentioned(asked: Sequence[Example]) -> float:
    """Return the accuracy of guessing from the answers that a prompt mentions.

    The better of two strategies: a random one of the set's answers that the prompt mentions, or
    always the most frequent right answer.
    """
    answers = [example.answer_text for example in asked]
    known = set(answers)
    mentioned = [len(known & set(re.findall(r"\w+", example.prompt))) for example in asked]
    by_mention = sum(1 / max(1, number) for number in mentioned) / len(asked)
    return max(by_mention, max(map(answers.count, known)) / len(asked))


def _documents(family: str) -> Iterator[str]:
    """Yield texts of a family's test exercises with their answers, endlessly."""
    return (ask_and_answer(example) for example in exercises(family, "test"))


def _prose(data_dir: Path) -> str:
    file = data_dir / "corpus" / HELD_OUT_TEXT
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{file}: cannot be read ({error}); statistics of prose need it"
        ) from error


def _windows(model: ScaleModel, texts: Iterator[str], count: int) -> list[list[int]]:
    """Return windows of token ids from texts that each end with end-of-text, as in training."""
    end, ids = model.tokenizer.token_to_id(END_OF_TEXT), list[int]()
    for text in texts:
        ids += model.tokenizer.encode(text).ids
        ids += [] if end is None else [end]
        if len(ids) >= count * WINDOW:
            break
    return [ids[i * WINDOW : (i + 1) * WINDOW] for i in range(min(count, len(ids) // WINDOW))]


def _routing(model: ScaleModel, windows: list[list[int]]) -> list[RoutedSequence]:
    return [
        routing
        for start in range(0, len(windows), WINDOWS)
        for routing in read(model.decoder, windows[start : start + WINDOWS], WINDOW // 2)
    ]


# ----------------------------------------------------------------------------- targets


def judged(model: str, statistics: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the judgement of each statistic for which the named model has a target.

    Returns:
        ``value``, ``low``, ``high`` and ``judgement`` by the statistic's dotted path.
    """
    return {
        key: {
            "value": value, "low": target.low, "high": target.high,
            "judgement": judge(value, target),
        }
        for key, target in targets(model).items()
        if (value := value_at(statistics, key)) is not None
    }  # fmt: skip


# ----------------------------------------------------------------------------- comparison


def differences(measured: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    """Return differences from the manifest that exceed the tolerances, one line each.

    Not compared are statistics of a source that only one side has, figures that the manifest lacks,
    and margins, which depend on the number of examples.
    """
    found = []
    for family, now in measured["accuracy"].items():
        then = recorded["accuracy"].get(family)
        if then is None:
            found.append(f"accuracy of {family}: not in the manifest")
            continue
        turned = sum(a != b for a, b in zip(now["answers"], then["answers"], strict=False))
        if turned > max(2, ANSWERS_TOLERANCE * now["n"]):
            found.append(f"accuracy of {family}: {turned} of {now['n']} answers turned")
    for source in measured["statistics"].keys() & recorded["statistics"].keys():
        now = dict(_flat(measured["statistics"][source]))
        then = dict(_flat(recorded["statistics"][source]))
        for key in sorted(then):
            if not _close(now.get(key), then.get(key)):
                found.append(
                    f"{source}: {key} is {now.get(key)}, the manifest says {then.get(key)}"
                )
    return found


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, float | None]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{key}[{index}]")
    else:
        yield key, value


def _close(now: float | None, then: float | None) -> bool:
    if now is None or then is None:
        return now is then
    return abs(now - then) <= STATISTICS_TOLERANCE * max(1.0, abs(then))
