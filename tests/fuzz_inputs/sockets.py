"""Fuzzing of OpenCompass' socket: whatever strangers send, the right client is answered."""

import tempfile
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz_inputs.door import Case, Door, Verdict
from tests.harness.acting import acts
from tests.harness.evaluate.clients import HOSTILE, TOKEN, Place, right

#: Lines that know the token, and lines that do not; sent whole or in part.
LINES = st.one_of(
    st.binary(max_size=120),
    st.sampled_from(HOSTILE),
    st.builds(lambda rest: f"{TOKEN}\n".encode() + rest, st.binary(max_size=80)),
    st.builds(lambda line, cut: line[:cut], st.sampled_from(HOSTILE), st.integers(0, 60)),
)


@st.composite
def strangers(draw: st.DrawFn) -> Case:
    """Generate what up to six strangers send, some of whom leave at once."""
    sent = draw(st.lists(st.tuples(LINES, st.booleans()), min_size=1, max_size=6))
    told = [f"{line[:40]!r}{' and leaves' if leaves else ''}" for line, leaves in sent]
    return Case(tuple(told), about=f"{len(sent)} strangers", data=sent)


def judge(case: Case) -> tuple[Verdict, str]:
    """Serve the strangers beside the right client; they are refused, each in one line, or wait."""
    with tempfile.TemporaryDirectory(prefix="moebench-") as folder:
        place = Place(Path(folder) / "s")
        try:
            client = right(place)
            for line, leaves in case.data:
                one = place.client(line)
                if leaves:
                    one.close()
                place.turns(3)
            if place.asks(client) != {"value": 5}:
                return Verdict.SILENT, "the right client got another answer"
        except BaseException as error:
            return Verdict.TRACEBACK, f"{type(error).__name__}: {error}"
        finally:
            place.close()
    wrong = [line for line in place.said if "\n" in line or acts(line) or "dropped" not in line]
    if wrong:
        return Verdict.UNCLEAR, wrong[0]
    return (Verdict.REFUSED if place.said else Verdict.RIGHT), "; ".join(place.said)


DOOR = Door("sockets", strangers(), judge=judge)
