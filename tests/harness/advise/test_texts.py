"""What is said of a configuration, and of whether a model fits."""

from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.question import Hardware, Lengths
from moebench.harness.advise.rules import RULES
from moebench.harness.advise.texts import in_words, quality, verdict
from tests.harness.advise.asked import question

EXACT = "no loss by the engine"


@pytest.mark.parametrize(
    ("fields", "engine", "said"),
    [
        ({}, "llama.cpp", ""), ({"kv": "f16"}, "llama.cpp", ""), ({"kv": "bf16"}, "vllm", ""),
        ({"kv": "f32"}, "llama.cpp", ""), ({"kv": "q8_0"}, "llama.cpp", "KV cache in q8_0"),
        ({"experts_used": 3}, "llama.cpp", "3 of 4 experts a token"),
        ({"experts_used": 4}, "llama.cpp", ""),
        ({"kv": "fp8", "experts_used": 1}, "vllm", "KV cache in fp8, 1 of 4 experts a token"),
        ({}, "accelerate", ", weights in bf16"),
        ({"kv": "q4_0"}, "accelerate", "KV cache in q4_0"),
    ],
)  # fmt: skip
def test_what_a_configuration_changes_in_outputs(
    fields: dict[str, Any], engine: str, said: str
) -> None:
    exact = quality(Configuration(engine="llama.cpp"), RULES["llama.cpp"], question())
    found = quality(Configuration(engine=engine, **fields), RULES[engine], question())
    assert found == (exact + said if not said or said.startswith(",") else said)


NO_CARD = {"hardware": Hardware(cpu="EPYC 9354")}


@pytest.mark.parametrize(
    ("fields", "changes", "said"),
    [
        ({}, {}, "all on the device, 512 rows"),
        ({"host_layers": 0}, {}, "all on the device, 512 rows"),
        ({"host_layers": 1}, {}, "experts of 1 of 36 layers on the host, 512 rows, 8 threads"),
        ({"host_layers": 35}, {}, "experts of 35 of 36 layers on the host, 512 rows, 8 threads"),
        ({"host_layers": 36}, {}, "all experts on the host, 512 rows, 8 threads"),
        ({"host_layers": 36, "resident": 7}, {},
         "all experts on the host, 7 of 128 experts a layer on the device too, 512 rows, "
         "8 threads"),
        ({"whole_layers": 36, "host_layers": 0}, {}, "all on the device, 512 rows"),
        ({"whole_layers": 35, "host_layers": 1}, {},
         "35 of 36 whole layers on the device, 512 rows, 8 threads"),
        ({}, NO_CARD, "all on the processor, 512 rows, 8 threads"),
        ({"repacked": True, "kv": "q8_0", "host_layers": 36}, {},
         "all experts on the host, 512 rows, 8 threads, repacked, KV cache q8_0"),
        ({"kv": "f16", "repacked": False, "resident": 0}, {}, "all on the device, 512 rows"),
    ],
)  # fmt: skip
def test_a_configuration_in_words(
    fields: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    config = Configuration(engine="llama.cpp", threads=8, micro_batch=512, **fields)
    assert in_words(config, question(**changes)) == said


def row(fits: str, forced: bool = False) -> Any:
    return SimpleNamespace(fits=fits, forced=forced, device_gib=20.25, host_gib=40.5,
                           verdict=f"it {fits}")  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "largest", "said"),
    [
        ([row("pages"), row("fits")], 0,
         "fits with a context of 32,768 tokens: 20.2 GiB on the device, 40.5 GiB in host memory"),
        ([row("fits", forced=True), row("pages")], 0, "it pages"),
        ([row("pages", forced=True)], 4096,
         "fits with a context of at most 4,096 tokens, not with 32,768"),
        ([], 32767, "fits with a context of at most 32,767 tokens, not with 32,768"),
        ([], 1, "fits with a context of at most 1 tokens, not with 32,768"),
        ([], 32768, "does not fit: see the reason of each engine"),
        ([], 0, "does not fit: see the reason of each engine"),
    ],
)  # fmt: skip
def test_whether_a_model_fits(rows: list[Any], largest: int, said: str) -> None:
    asked = question(lengths=Lengths(32768, 10, 10))
    assert verdict(asked, rows, largest) == said
