"""Everything that can go wrong, as one small tree.

MoeBenchError                 base: the message says what, where, what is allowed, what to type
├── UsageError                the user asked for something that does not exist or cannot be
│   ├── UnknownNameError      a name that no catalogue holds; lists the nearest ones
│   └── NotApplicableError    a system that does not exist for this model or batch
├── InputError                a file is missing, broken or of the wrong shape
│   ├── CheckpointError       weights or their config.json
│   └── ProfileError          a hardware profile
├── BudgetError               a memory budget is too small for what must be in it
└── IntegrityError            an invariant of the substrate was broken: a bug, never the user

The command line turns every one but IntegrityError into one line and exit code 2.
"""

import difflib
from collections.abc import Iterable


class MoeBenchError(Exception):
    """Base of every error that moebench raises on purpose."""


class UsageError(MoeBenchError):
    """An option, or a combination of options, that cannot be."""


class UnknownNameError(UsageError):
    """A name that a catalogue does not hold.

    Args:
        kind: what was looked up, as a user would call it ("system", "setting", ...).
        name: what the user typed.
        known: every name that would have been right.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        names = sorted(known)
        nearest = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.4)
        offer = f"nearest: {', '.join(nearest)}" if nearest else f"known: {', '.join(names)}"
        super().__init__(f"unknown {kind} {name!r}; {offer}" + (f"; {hint}" if hint else ""))


class NotApplicableError(UsageError):
    """A system that does not exist for this model or batch; comparisons show it as *n/a*."""


class InputError(MoeBenchError):
    """A file that the user gave is missing, broken or of the wrong shape."""


class CheckpointError(InputError):
    """A checkpoint's tensors or config.json are missing, truncated or mis-shaped."""


class ProfileError(InputError):
    """A hardware profile is incomplete or holds an impossible number."""


class BudgetError(MoeBenchError):
    """A memory budget is too small for what must be resident at once."""


class IntegrityError(MoeBenchError):
    """An invariant of the substrate was broken.  This is a bug in moebench or in a system."""
