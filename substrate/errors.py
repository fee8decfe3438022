"""Exception classes of moebench.

MoeBenchError                 base: the message has problem, place, allowed values and fix
├── UsageError                an option has an unknown, impossible or contradictory value
│   ├── UnknownNameError      a name that no catalogue holds; lists the nearest ones
│   ├── NotApplicableError    a system that does not exist for this model or batch
│   └── NotRecordedError      a replay asks for a prediction that its trace does not hold
├── InputError                a file is missing, broken or of the wrong shape
│   ├── CheckpointError       weights or their config.json
│   └── ProfileError          a hardware profile
├── BudgetError               a memory budget is too small for what must be in it
└── IntegrityError            an invariant of the substrate was broken: a bug, never the user

The command line prints all but IntegrityError as one line and exits with code 2.
"""

import difflib
from collections.abc import Iterable


class MoeBenchError(Exception):
    """Base class of all exceptions that moebench raises on purpose."""


class UsageError(MoeBenchError):
    """An option or a combination of options is not allowed."""


class UnknownNameError(UsageError):
    """A name is not in its catalogue; the message lists the nearest names.

    Args:
        kind: the kind of name in users' words ("system", "setting", ...).
        name: the name that the user typed.
        known: all allowed names.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        names = sorted(known)
        nearest = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.4)
        offer = f"nearest: {', '.join(nearest)}" if nearest else f"known: {', '.join(names)}"
        super().__init__(f"unknown {kind} {name!r}; {offer}" + (f"; {hint}" if hint else ""))


class NotApplicableError(UsageError):
    """A system does not support this model or batch; comparisons show it as *n/a*."""


class NotRecordedError(UsageError):
    """A replayed trace does not hold a prediction that the system asks for."""


class InputError(MoeBenchError):
    """A file that the user gave is missing, broken or of the wrong shape."""


class CheckpointError(InputError):
    """A checkpoint's tensors or config.json are missing, truncated or mis-shaped."""


class ProfileError(InputError):
    """A hardware profile is incomplete or holds an impossible number."""


class BudgetError(MoeBenchError):
    """A memory budget is too small for the data that must be resident at once."""


class IntegrityError(MoeBenchError):
    """An invariant of the substrate was broken, by a bug in moebench or in a system."""
