"""Imports by a call are noted under the module that makes them, and work as they did."""

import importlib
import json
import sys

import pytest

from moebench.systems import dynamic_imports
from moebench.systems.dynamic_imports import imported_by, recorded


@pytest.mark.slow
def test_calls_that_import_are_recorded_and_give_the_module() -> None:
    statement, call = __import__, importlib.import_module
    with recorded():
        assert importlib.import_module("json.decoder") is sys.modules["json.decoder"]
        assert importlib.import_module(".encoder", "json") is sys.modules["json.encoder"]
        assert __import__("csv") is sys.modules["csv"]
        import wave  # noqa: F401
    assert imported_by(__name__) == ["csv", "json.decoder", "json.encoder"]
    assert (__import__, importlib.import_module) == (statement, call)
    importlib.import_module("html")
    assert "html" not in imported_by(__name__)
    assert imported_by(json.__name__) == imported_by(dynamic_imports.__name__) == []
