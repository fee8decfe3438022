"""Expected time of `moebench run`, printed when the run begins."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moebench.reports.text import counted

if TYPE_CHECKING:
    from moebench.results.spec import RunSpec

#: Runs that take less time in seconds are not announced.
SHORT_S = 2.0


def since_start() -> float:
    """Return the seconds since this process was started; its CPU time where that is unknown."""
    try:
        # Fields after the name in brackets; the 20th is the start in clock ticks since boot.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return time.process_time()


class Announcer:
    """Prints the expected time of a run: before a system learns, and after the first tokens.

    Args:
        say: prints a line.
        interval: whether the run's interval is computed, too.
        clock: returns seconds from any start.
        before_s: seconds since the command was started.
    """

    def __init__(
        self, spec: "RunSpec", say: Callable[[str], None], interval: bool,
        clock: Callable[[], float] = time.monotonic, before_s: float = 0.0,
    ) -> None:  # fmt: skip
        from moebench.harness.sweep.forecast import Pace, replayed_tokens

        self._spec, self._say, self._clock = spec, say, clock
        self._began = clock() - before_s
        self._replayed = replayed_tokens(spec) if interval else 0
        self._pace = Pace(clock)
        self._learns = self._said = False

    def phase(self, name: str, done: int, total: int | None) -> None:
        """Note a phase; after the first decoded tokens, print the expected time."""
        self._pace.phase(name, done, total)
        if self._pace.rates is not None and not self._said:
            self._said = True
            self._announce()

    def _announce(self) -> None:
        from moebench.harness.sweep.estimate import duration, run_seconds
        from moebench.harness.sweep.forecast import counts_of

        spec, rates = self._spec, self._pace.rates
        assert rates is not None
        counts = counts_of(spec, self._replayed)
        if not counts.passes:  # answers end where the model ends them
            return
        left = run_seconds(counts, rates._replace(start_s=0.0))
        if left < SHORT_S:
            return
        tokens = f"{counted(spec.prompts, 'prompt')} of {counted(spec.new_tokens, 'token')}"
        pace = f"{rates.pass_s * 1e3:.3g} ms a token"
        if spec.batch > 1:
            tokens, pace = f"{tokens}, {spec.batch} at a time", f"{pace} of each"
        if self._learns:
            self._say(f"about {duration(left)} left: {tokens}, {pace}")
            return
        whole = self._clock() - self._began + left
        self._say(f"about {duration(whole)}: {tokens}, {pace} to compute")

    def learning(self, session: Any, store: Path) -> None:
        """Print how long the run's system learns, if the store does not hold what it learns."""
        from moebench.harness.run.live import ComputingSession
        from moebench.harness.sweep.forecast import Learner, Load, learns

        if not isinstance(session, ComputingSession):
            return
        found = learns(session, store)
        if found is None:
            return
        from moebench.harness.run import learn

        self._learns = True
        texts = len(learn.texts(session.spec, session.system, session.data_dir).examples)
        with Load() as load:
            learner = Learner(session, texts)
            trained = learner.train_seconds(found.policies, texts)
        slower = load.slowdown(1)
        write = learner.write_seconds(found.texts) * slower
        train, most = (seconds * slower for seconds in trained)
        run = self._run_seconds(learner.pass_s) * slower
        if write + train < SHORT_S:
            return
        for line in learning_lines(self._spec, texts, write, train, most, run):
            self._say(line)

    def _run_seconds(self, pass_s: float) -> float:
        """Return the expected time of the run itself from the lossless model's time of a token."""
        from moebench.harness.sweep.estimate import PREFILL_PASSES, Rates, run_seconds
        from moebench.harness.sweep.forecast import counts_of

        counts = counts_of(self._spec, self._replayed)
        return run_seconds(counts, Rates(0.0, PREFILL_PASSES * pass_s, pass_s))


def learning_lines(
    spec: "RunSpec", texts: int, write_s: float, train_s: float, most_s: float, run_s: float
) -> list[str]:
    """Return the lines that announce how long a system learns before it runs.

    Args:
        texts: number of texts that it learns from.
        write_s, train_s, run_s: expected times to generate them, to train, and to run.
        most_s: longest time to train, if it does not stop early.
    """
    from moebench.harness.cli.parameters import QUICK_TEXTS
    from moebench.harness.sweep.estimate import duration

    parts = [f"{duration(write_s)} to generate {texts} texts" if write_s else
             f"its {texts} texts are stored"]  # fmt: skip
    if train_s:
        at_most = f" (at most {duration(most_s)})" if most_s > train_s else ""
        parts.append(f"{duration(train_s)} to train on them{at_most}")
    parts.append(f"{duration(run_s)} to run")
    lines = [
        f"about {duration(write_s + train_s + run_s)}: {spec.title} learns before it runs: "
        f"{', '.join(parts)}; what it learns is stored for later runs"
    ]
    if texts > QUICK_TEXTS:
        lines.append(
            f"--calibrate-texts {QUICK_TEXTS} learns from fewer texts, in about "
            f"{duration((write_s + train_s) * QUICK_TEXTS / texts)}; such a run is another one: it "
            "is stored separately and predicts less well"
        )
    return lines
