"""Hashes of code that are kept for later processes."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.run import code_cache, identity
from moebench.harness.run.code_cache import CodeCache, cache_file, key_of


def never() -> list[str]:
    raise AssertionError("it was computed again")


def test_what_is_kept_is_not_computed_again(tmp_path: Path) -> None:
    file = tmp_path / "below" / "code.json"
    first = CodeCache(file)
    assert first.texts("a", lambda: ["x"]) == ["x"]
    assert first.texts("a", never) == ["x"]
    assert not file.exists()
    first.save()
    assert CodeCache(file).texts("a", never) == ["x"]


def test_two_processes_keep_what_both_computed(tmp_path: Path) -> None:
    file = tmp_path / "code.json"
    one, other = CodeCache(file), CodeCache(file)
    one.texts("a", lambda: ["x"])
    other.texts("b", lambda: ["y"])
    one.save()
    other.save()
    assert json.loads(file.read_text()) == {"a": ["x"], "b": ["y"]}


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"a": "x"}', '{"a": [1]}', "\x00\xff"])
def test_a_file_that_is_not_ours_is_computed_again(tmp_path: Path, text: str) -> None:
    file = tmp_path / "code.json"
    file.write_text(text)
    cache = CodeCache(file)
    assert cache.texts("a", lambda: ["x"]) == ["x"]
    cache.save()
    assert json.loads(file.read_text()) == {"a": ["x"]}


def test_without_a_folder_everything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (None, tmp_path / "file" / "code.json"):
        cache = CodeCache(place)
        assert cache.texts("a", lambda: ["x"]) == ["x"]
        cache.save()
        cache.save()


def test_the_oldest_entries_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_cache, "MOST", 2)
    cache = CodeCache(tmp_path / "code.json")
    for key in "abc":
        cache.texts(key, lambda key=key: [key])  # type: ignore[misc]
    cache.save()
    assert list(json.loads((tmp_path / "code.json").read_text())) == ["b", "c"]


def test_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = cache_file()
    assert found is not None
    assert found.parent == tmp_path / "moebench"

    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert cache_file() is None


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_keys_tell_parts_apart(one: list[bytes], other: list[bytes]) -> None:
    assert (key_of(one) == key_of(other)) == (one == other)


@pytest.mark.slow
def test_hashes_are_the_same_with_and_without_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moebench.systems.smoe import SMoE

    def hashes(cache: CodeCache) -> tuple[str, str]:
        monkeypatch.setattr(identity, "CACHE", cache)
        for cached in (identity.syntax_of, identity.imports_of, identity._ours):
            cached.cache_clear()
        return identity.shared_code_hash(), identity.system_code_hash(SMoE())

    alone = hashes(CodeCache(None))
    file = tmp_path / "code.json"
    assert hashes(CodeCache(file)) == alone
    parsed: list[Any] = []
    monkeypatch.setattr(identity.ast, "parse", parsed.append)
    assert hashes(CodeCache(file)) == alone
    assert not parsed


def test_another_source_has_another_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "CACHE", CodeCache(tmp_path / "code.json"))
    one = identity._digest([("a", b"x = 1")])
    assert identity._digest([("a", b"x = 2")]) != one
    assert identity._digest([("b", b"x = 1")]) != one
    assert identity._digest([("a", b"x = 1")], [b"more"]) != one
    assert identity._digest([("a", b"x = 1  # a comment")]) == one
