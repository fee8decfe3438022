"""Sweeps with a full disk, a jumping clock, or concurrent sweeps end as undisturbed ones."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.sweep.forks import (
    CELLS,
    COUNT,
    POINTS,
    Forks,
    calls,
    compiled,
    contents,
    ready_to_fork,
    say,
    strangers,
)

pytestmark = pytest.mark.usefixtures("tiny_models")

SWEEP = ("sweep", *CELLS, "--jobs", "0", "--store")

#: A run that also keeps a picture of its time line.
RUN = (
    "run", "--system", "smoe", "--setting", "S3", "--workload", "arithmetic", "--prompts", "1",
    "--new-tokens", "3", "--no-interval", "--store",
)  # fmt: skip


@pytest.fixture(scope="module")
def forks(tiny_models: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    library = compiled(tmp_path_factory.mktemp("faults"))
    if library is None:
        pytest.skip("no C compiler: faults are injected below Python by a small library")
    with ready_to_fork(library) as forks:
        yield forks


@pytest.mark.slow
@pytest.mark.parametrize("command", [RUN, SWEEP], ids=["run", "sweep"])
def test_full_disk_at_any_write_fails_cleanly_and_resumes(
    forks: Forks, command: tuple[str, ...]
) -> None:
    assert forks(*command, "whole", full_at=0).code == 0
    undisturbed, writes = contents("whole"), calls()
    assert writes > 20  # else the faults would not be injected
    points = range(1, writes + 1)
    if writes > POINTS:  # the first and the last, and some between
        drawn = random.Random(0).sample(points[1:-1], POINTS - 2)
        points = [points[0], *sorted(drawn), points[-1]]
    failed = 0
    for at in points:
        store = f"full-{at}"
        ended = forks(*command, store, full_at=at)
        failed += ended.code != 0
        assert ended.code in (0, 1, 2), (at, ended)
        assert "Traceback" not in ended.said, (at, ended.said)
        if ended.code == 2:
            assert ended.said.splitlines()[-1].startswith("moebench: "), (at, ended.said)
        if Path(store).exists():
            assert not strangers(store), at
        # When there is space again, the same command resumes.
        again = forks(*command, store, *retried(command))
        assert again.code == 0, (at, again)
        assert contents(store) == undisturbed, at
        assert not strangers(store), at
    assert failed > len(points) / 2
    say(f"disk full from the n-th of {writes} writes of a {command[0]} on", len(points),
        "one line; nothing half-written; then equal to an undisturbed one")  # fmt: skip


def retried(command: tuple[str, ...]) -> tuple[str, ...]:
    """A sweep does not run failed cells again unless it is told to."""
    return ("--retry-failed",) if command[0] == "sweep" else ()


@pytest.mark.slow
def test_clock_jumps_do_not_change_results(forks: Forks) -> None:
    assert forks(*SWEEP, "whole").code == 0
    for number in range(max(1, POINTS // 5)):
        store = f"jumped-{number}"
        assert forks(*SWEEP, store, clock_s=10**7).code == 0
        assert contents(store) == contents("whole")
    say("time of day jumps by up to 115 days at every reading", max(1, POINTS // 5), "equal")


@pytest.mark.slow
def test_concurrent_sweeps_share_one_store(forks: Forks) -> None:
    assert forks(*SWEEP, "whole").code == 0
    for number in range(max(1, POINTS // 5)):
        store = f"shared-{number}"
        ended = forks(*SWEEP, store, at_once=3)
        assert ended.code == 0, ended.said
        assert len(contents(store)) == COUNT
        assert contents(store) == contents("whole")
        assert not strangers(store)
    say("three sweeps on one store at once", max(1, POINTS // 5), "equal")
