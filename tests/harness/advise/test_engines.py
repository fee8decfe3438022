"""The table of engines' options: what it says, how engines are found, and what it refuses."""

from typing import Any

import pytest
from pydantic import ValidationError

from moebench.harness.advise import engines as engines_module
from moebench.harness.advise.engines import EngineOptions, Option, engines, find_engine, is_engine
from moebench.harness.published.engines import ENGINES as PUBLISHED
from moebench.harness.published.rows import read_rows, shipped
from moebench.substrate.errors import UnknownNameError, UsageError

KEYS = ("llama.cpp", "ik_llama.cpp", "llama.cpp-moe-cache", "ktransformers", "kt-kernel",
        "exllamav3", "freetoken", "accelerate", "deepspeed", "vllm", "ollama", "lm-studio",
        "koboldcpp", "tinyserve", "gnf4")  # fmt: skip


def test_every_engine_has_a_home_a_source_and_a_version_or_none() -> None:
    assert set(engines()) == set(KEYS)
    for one in engines().values():
        assert one.home.startswith("https://")
        assert one.source
        assert "version unknown" in one.read_version or str(one.version) in one.read_version
    assert {key for key, one in engines().items() if one.version is None} == {"lm-studio", "gnf4"}


def test_every_engine_of_published_rows_is_in_the_table() -> None:
    assert all(is_engine(name) for name in PUBLISHED if name != "ik_llama")
    assert find_engine("ik_llama").key == "ik_llama.cpp"


@pytest.mark.parametrize(("name", "key"), [
    ("llamacpp", "llama.cpp"), ("Llama.CPP", "llama.cpp"), ("llama_cpp", "llama.cpp"),
    ("ik", "ik_llama.cpp"), ("IK llama.cpp", "ik_llama.cpp"), ("moe-cache", "llama.cpp-moe-cache"),
    ("kt", "kt-kernel"), ("sglang", "kt-kernel"), ("KTransformers", "ktransformers"),
    ("exl3", "exllamav3"), ("ft", "freetoken"), ("LM Studio", "lm-studio"), ("vLLM", "vllm"),
])  # fmt: skip
def test_engines_are_found_by_common_spellings(name: str, key: str) -> None:
    assert find_engine(name).key == key
    assert is_engine(name)


@pytest.mark.parametrize(("name", "near"), [
    ("lama.cp", "llama.cpp"), ("exlama", "exllama"), ("zzzz", "known: accelerate"),
])  # fmt: skip
def test_unknown_engine_is_one_line_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_engine(name)
    assert "\n" not in str(caught.value)
    assert near in str(caught.value)
    assert not is_engine(name)


def test_a_spelling_belongs_to_one_option_of_an_engine() -> None:
    for one in engines().values():
        own = [*one.options, *one.unread.options()]
        spelled = [text for option in own for text in option.spellings]
        assert sorted(spelled) == sorted(set(spelled)), one.key


#: Flags as their parsers define them, read apart from the table: (engine, flag, takes, sets).
FACTS = (
    ("llama.cpp", "--n-cpu-moe", "integer", "host_layers"),
    ("llama.cpp", "-ub", "integer", "micro_batch"),
    ("llama.cpp", "--cpu-moe", "none", "host_layers"),
    ("llama.cpp", "--jinja", "none", None),
    ("llama.cpp-moe-cache", "--moe-cache", "text", "resident"),
    ("llama.cpp-moe-cache", "-ngl", "text", "whole_layers"),
    ("ik_llama.cpp", "-rtr", "none", "repacked"),
    ("ik_llama.cpp", "-amb", "text", None),
    ("kt-kernel", "--kt-num-gpu-experts", "integer", "resident"),
    ("kt-kernel", "--kt-enable-dynamic-expert-update", "none", None),
    ("exllamav3", "--moe_cpu_split", "integer", "resident"),
    ("exllamav3", "-ngl", "none", None),
    ("freetoken", "--moe-cache-size", "integer", "resident"),
    ("koboldcpp", "--moecpu", "integer", "host_layers"),
)


@pytest.mark.parametrize(("key", "flag", "takes", "sets"), FACTS)
def test_flags_are_as_documented(key: str, flag: str, takes: str, sets: str | None) -> None:
    option = engines()[key].by_spelling[flag]
    assert (option.takes, option.sets) == (takes, sets)


@pytest.mark.parametrize(("key", "flag"), [
    ("llama.cpp", "-rtr"), ("llama.cpp", "--moe-cache"), ("ik_llama.cpp", "--load-mode"),
    ("freetoken", "--kv-cache-dtype"), ("vllm", "--n-cpu-moe"), ("lm-studio", "--n-cpu-moe"),
])  # fmt: skip
def test_flags_of_other_engines_are_absent(key: str, flag: str) -> None:
    assert flag not in engines()[key].by_spelling


def test_flags_that_llama_cpp_refuses_now_are_marked() -> None:
    table = engines()["llama.cpp"].by_spelling
    assert table["--no-mmap"].removed
    assert table["--mlock"].removed
    assert not table["--load-mode"].removed
    assert "--no-mmap" not in engines()["llama.cpp"].nearest("--no-mmp")
    assert not engines()["ik_llama.cpp"].by_spelling["--no-mmap"].removed


def test_wrong_tables_are_refused() -> None:
    right: dict[str, Any] = {
        "key": "x", "name": "x", "home": "https://x", "version": None, "source": "s",
        "programs": [], "aliases": [], "options": [],
    }  # fmt: skip
    assert EngineOptions.model_validate(right).by_spelling == {}
    for wrong in ({"home": 3}, {"speed": 1}, {"options": [{"spellings": "-a", "takes": "much"}]}):
        with pytest.raises(ValidationError):
            EngineOptions.model_validate({**right, **wrong})
    with pytest.raises(ValidationError):
        Option(spellings=(), takes="none")


def test_table_ships_beside_its_reader() -> None:
    assert engines_module.ENGINES.is_file()
    assert issubclass(UnknownNameError, UsageError)
    assert read_rows(shipped())  # the rows that other tests compare with
