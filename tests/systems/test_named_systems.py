"""The page of systems that the papers name leaves none of them without an answer."""

import re
from pathlib import Path

import pytest

from moebench.systems.registry import NATIVE, POLICIES, SYSTEMS

PAGE = Path(__file__).parents[2] / "docs" / "named-systems.md"

#: Names as the papers' texts and bibliographies have them, by one of each system's own.
NAMED = (
    "Accelerate", "AdapMoE", "AWQ", "ComPEFT", "CRISP", "DAOP", "DeepSpeed-Inference",
    "DeepSpeed-MII", "DuoServe-MoE", "EdgeMoE", "EdgeShard", "expert affinity", "expert pruning",
    "Fiddler", "FlashMoE", "FlexGen", "GPTQ", "GShard", "HeteGen", "HybriMoE", "Keyformer",
    "kTransformers", "LIA", "Lina", "llama.cpp", "MC-SMoE", "Mixtral-Offloading", "MoE-Infinity",
    "MoE-Lightning", "MoESys", "NEO", "PowerInfer", "PowerInfer-2", "Pre-gated MoE", "ProMoE",
    "QMoE", "ScheMoE", "SE-MoE", "SiDA-MoE", "SMoE", "SparseGPT", "SwapMoE", "vLLM", "Wanda",
    "ZeRO-Offload",
)  # fmt: skip


def rows(section: str) -> list[list[str]]:
    """Return the cells of a section's table."""
    text = PAGE.read_text(encoding="utf-8").split(f"## {section}\n")[1].split("\n## ")[0]
    table = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table[1:]]


@pytest.mark.parametrize("name", NAMED)
def test_every_named_system_has_one_answer(name: str) -> None:
    found = [
        row
        for section in ("In moebench", "Outside")
        for row in rows(section)
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", row[0])
    ]
    assert len(found) == 1, found
    assert all(found[0]), "no cell is empty"


def test_what_is_said_to_be_here_is_here() -> None:
    for row in rows("In moebench"):
        named = re.findall(r"`([^`]+)`", row[2])
        assert named
        for name in named:
            policy = re.fullmatch(r"--set (\w+)=([\w-]+)", name)
            if policy:
                assert policy[2] in POLICIES[policy[1]]
            elif not name.startswith("moebench "):
                assert name in SYSTEMS or name in NATIVE, name


def test_a_reason_is_given_for_each_system_outside() -> None:
    assert all(len(row) == 4 and all(row) for row in rows("Outside"))
    assert not {row[0].lower() for row in rows("Outside")} & set(SYSTEMS)
