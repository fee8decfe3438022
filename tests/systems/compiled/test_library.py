"""Compiling the library: what is kept, and what happens where it cannot be compiled."""

import os
import shutil

import pytest

from moebench.systems.compiled import library
from moebench.systems.compiled.engine import compiled as engine_of
from tests.systems.compiled.test_engine import case_of

needs_compiler = pytest.mark.skipif(
    shutil.which("c++") is None, reason="needs a C++ compiler: install g++"
)
WORKING, BROKEN = 'extern "C" int one() { return 1; }\n', "this is not C++\n"


@needs_compiler
def test_a_source_is_compiled_once(tmp_path, monkeypatch):
    source = tmp_path / "replay.cpp"
    source.write_text(WORKING)
    made = library.compiled([source], tmp_path / "kept")
    assert made is not None
    assert os.listdir(tmp_path / "kept") == [made.name]
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert library.compiled([source], tmp_path / "kept") == made
    source.write_text(WORKING + "// changed\n")
    assert library.compiled([source], tmp_path / "kept") is None


@needs_compiler
def test_what_cannot_be_compiled_is_no_library(tmp_path):
    source = tmp_path / "replay.cpp"
    source.write_text(BROKEN)
    assert library.compiled([source], tmp_path / "kept") is None
    assert not os.listdir(tmp_path / "kept")


@needs_compiler
def test_a_folder_that_cannot_be_made_keeps_none(tmp_path):
    source, file = tmp_path / "replay.cpp", tmp_path / "file"
    source.write_text(WORKING)
    file.write_text("not a folder")
    assert library.compiled([source], file / "kept") is None


def test_the_compiler_is_the_one_that_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert library.compiler() is None


def test_the_folder_is_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library.folder() == tmp_path / "moebench"


@needs_compiler
def test_a_damaged_library_is_none(monkeypatch, tmp_path):
    damaged = tmp_path / "replay.so"
    damaged.write_bytes(b"not a library")
    library.library.cache_clear()
    try:
        assert library.library() is not None
        library.library.cache_clear()
        monkeypatch.setattr(library, "compiled", lambda sources, kept_in: damaged)
        assert library.library() is None
    finally:
        library.library.cache_clear()


def test_without_a_library_python_replays(monkeypatch):
    monkeypatch.setattr("moebench.systems.compiled.engine.library", lambda: None)
    made = case_of("moe-ondemand", {}).made_rig()
    assert engine_of(made.engine) is made.engine
