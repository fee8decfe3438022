"""A data folder with a few examples of every kind that evaluators score."""

import json
from pathlib import Path
from typing import Any


def write_data(folder: Path, questions: int = 3) -> Path:
    """Write data sets in the format of `workloads.data`."""
    for name, record in _KINDS.items():
        (folder / name).mkdir(parents=True)
        for split in ("test", "train"):
            lines = []
            for i in range(questions):
                one = record(i, split)
                defaults = {"id": f"{name}/{split}/{i}", "split": split, "answers": None}
                if one.get("choices") is not None and not name.startswith("gaokao"):
                    one["prompt"] += "".join(
                        f"\n{letter}. {text}"
                        for letter, text in zip("ABCD", one["choices"], strict=False)
                    )
                lines.append(json.dumps(defaults | one) + "\n")
            (folder / name / f"{split}.jsonl").write_text("".join(lines))
    (folder / "corpus").mkdir()
    words = "the cup is in the shop and where the shop is nobody says "
    for file in ("wikitext2_test.txt", "wikitext2_valid.txt"):
        (folder / "corpus" / file).write_text(words * 60)
    return folder


def _gsm8k(i: int, split: str) -> dict[str, Any]:
    prompt = f"Ann has {i} cups in the {split} shop and buys {i + 2}. How many cups are there?"
    return {"prompt": prompt, "choices": None, "answer": str(2 * i + 2)}


def _triviaqa(i: int, split: str) -> dict[str, Any]:
    answer = ["The Shop", "A cup", "Nobody's"][i % 3]
    prompt = f"Where is cup {i} of the {split}?"
    return {
        "prompt": prompt,
        "choices": None,
        "answer": answer,
        "answers": [answer, f"{answer} {i}"],
    }


def _arc(i: int, split: str) -> dict[str, Any]:
    choices = [f"a cup {i}", f"the shop's {split}", f"where is {i}", "nobody"]
    return {"prompt": f"What is {i}?", "choices": choices, "answer": i % 4}


def _winogrande(i: int, split: str) -> dict[str, Any]:
    prompt = f"The {split} cup {i} did not fit into the shop because _ was too large."
    return {"prompt": prompt, "choices": ["the cup", "the shop"], "answer": i % 2}


def _wic(i: int, split: str) -> dict[str, Any]:
    prompt = (
        f"Sentence 1: The cup of {split} {i}.\nSentence 2: A cup in the shop.\n"
        'Question: Is the word "cup" used with the same meaning in both sentences?'
    )
    return {"prompt": prompt, "choices": ["yes", "no"], "answer": i % 2}


def _race(i: int, split: str) -> dict[str, Any]:
    prompt = f"The {split} shop has {i} cups.\nIt is far.\nQuestion: Where is cup {i}?"
    return {"prompt": prompt, "choices": ["here", "there", "in the shop", "gone"], "answer": i % 4}


def _gaokao(i: int, split: str) -> dict[str, Any]:
    prompt = f"{i}. {split} ( )\nA. cup B. shop C. here D. there"
    return {"prompt": prompt, "choices": list("ABCD"), "answer": (i + 1) % 4}


_KINDS = {
    "gsm8k": _gsm8k,
    "triviaqa": _triviaqa,
    "arc_easy": _arc,
    "winogrande": _winogrande,
    "wic": _wic,
    "race_middle": _race,
    "gaokao_biology": _gaokao,
}
