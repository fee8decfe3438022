"""Phases are reported to the innermost listener, and to nobody without one."""

import pytest

from moebench.substrate.progress_events import phase_listener, report_phase

Phases = list[tuple[str, int, int | None]]


def test_phases_reach_the_innermost_listener() -> None:
    outer: Phases = []
    inner: Phases = []
    report_phase("load")
    with phase_listener(lambda *phase: outer.append(phase)):
        report_phase("load")
        with phase_listener(lambda *phase: inner.append(phase)):
            report_phase("decode", 2, 5)
        report_phase("scoring", 1)
    report_phase("decode")
    assert outer == [("load", 0, None), ("scoring", 1, None)]
    assert inner == [("decode", 2, 5)]


def test_an_error_ends_the_listening() -> None:
    heard: Phases = []
    with pytest.raises(RuntimeError), phase_listener(lambda *phase: heard.append(phase)):
        raise RuntimeError
    report_phase("load")
    assert heard == []
