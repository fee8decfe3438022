"""Runs of one case by the engine in Python and by compiled code."""

from dataclasses import asdict
from typing import Any

from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.records import Generation
from moebench.substrate.errors import NotRecordedError
from moebench.substrate.machines.timeline import Timeline
from moebench.systems.compiled.engine import CompiledEngine
from moebench.systems.compiled.twins import why_not
from tests.substrate.engine.cases import Case


class Refused(Exception):
    """Raised with the reason why the engine in Python replays a case."""


def totals_of(timeline: Timeline) -> dict[str, Any]:
    """All sums of a timeline, with operations by what they are and not by a stand-in."""
    found = {}
    for phase, of in timeline.totals.items():
        computed: dict[Any, int] = {}
        for lane, ops in of.computed.items():
            for op, times in ops.values():
                what = (lane, op.kind, op.rows, op.context, op.pairs, op.network)
                computed[what] = computed.get(what, 0) + times[0]
        found[phase] = (of.busy_ns, dict(of.stall_ns), of.moved_bytes, computed)
    return found


def told(engine: Engine, generations: list[Generation]) -> dict[str, Any]:
    """All that a document, a report or a bound can read of a run."""
    engine.timeline.finish(generations[-1].token_ends_ns[-1])
    return {
        "spans and events": engine.timeline.records(),
        "sums": totals_of(engine.timeline),
        "counts": {phase: asdict(counts) for phase, counts in engine.tally.by_phase.items()},
        "batches": [asdict(generation) for generation in generations],
        "clock": engine.machine.now_ns(),
    }


def by_python(case: Case) -> dict[str, Any]:
    made, generations = case.run()
    return told(made.engine, generations) | {"bytes": made.tier.peak_bytes}


def by_compiled_code(case: Case) -> dict[str, Any]:
    """As `by_python`; raises Refused where compiled code cannot replay the case."""
    made = case.made_rig()
    reason = why_not(made.engine)
    if reason is not None:
        raise Refused(reason)
    engine = CompiledEngine(made.engine)
    prompts = [[[0] * n for n in lengths] for lengths in case.batches]
    generations = [engine.generate(p, case.passes) for p in prompts]
    return told(engine, generations) | {"bytes": made.tier.peak_bytes}


def check_equal(case: Case) -> bool:
    """Check that both replay a case alike, or refuse it with the same words; return which."""
    found = outcome(by_compiled_code, case)
    expected = outcome(by_python, case)
    if isinstance(found, str) or isinstance(expected, str):
        # Of several things that a trace lacks, the first one that is asked for is named.
        lacking = "NotRecordedError" in (found, expected)
        assert found == expected or (lacking and isinstance(found, type(expected)))
        return False
    for name, value in expected.items():
        assert found[name] == value, name
    return True


def outcome(run: Any, case: Case) -> dict[str, Any] | str:
    try:
        return run(case)
    except Refused:
        raise
    except NotRecordedError:  # which of several lacking predictions it names is another
        return "NotRecordedError"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
