"""Sessions of tiny models for an evaluator's requests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moebench.harness.evaluate.session import EvaluatedSession, prepare_evaluated, resolve_evaluated
from moebench.harness.run.execute import started


@contextmanager
def responding(
    mode: str | None = None, system: str = "gpu-only", max_length: int | None = None, **given: Any
) -> Iterator[EvaluatedSession]:
    """Open a session whose responder answers requests."""
    spec = resolve_evaluated(
        None, mode, system=system, setting="S3", allow_overcommit=True, **given
    )
    session = prepare_evaluated(spec, None, max_length)
    with started(session, Path("scratch"), lambda done, total: None) as ready:
        session.responder.engine = ready.stage.engine
        yield session
