"""Documents of replays in compiled code are those of replays in Python."""

import pytest

from moebench.harness.run import execute
from moebench.harness.run.rules import resolve
from moebench.systems.compiled.engine import CompiledEngine, compiled
from moebench.systems.compiled.library import library

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        library() is None, reason="needs a C++ compiler: install g++, or set CXX"
    ),
]  # fmt: skip


def outcome(system: str, tmp_path, monkeypatch, with_code: bool, **given):
    """The document without its origin, the excerpt and the tokens' times of a drawn replay."""
    engines = []

    def chosen(engine):
        engines.append(compiled(engine) if with_code else engine)
        return engines[-1]

    monkeypatch.setattr(execute, "compiled", chosen)
    spec = resolve(
        None, system=system, setting="S1", routing="drawn", new_tokens=14, **given
    )  # fmt: skip
    ran = execute.run(execute.prepare(spec, None), tmp_path)
    assert [type(engine) is CompiledEngine for engine in engines] == [with_code]
    document = {name: part for name, part in ran.document.items() if name != "provenance"}
    return document, ran.picture, [g.token_ends_ns for g in ran.generations]


@pytest.mark.parametrize(("system", "given"), [
    ("moe-ondemand", {"prompts": 2}),
    ("smoe", {"prompts": 3, "batch": 3}),
    ("fiddler", {"prompts": 2, "clairvoyant": True}),
    ("lfru", {"prompts": 2, "batch": 2}),
])  # fmt: skip
def test_a_document_does_not_say_which_engine_replayed(system, given, tmp_path, monkeypatch):
    expected = outcome(system, tmp_path, monkeypatch, False, **given)
    document, picture, ends = outcome(system, tmp_path, monkeypatch, True, **given)
    assert document == expected[0]
    assert picture
    assert picture == expected[1]
    assert ends == expected[2]
