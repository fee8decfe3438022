"""Two bounds of decoding time by linear programs: with all routing known, and without foresight.

`substrate.analysis.bound` takes the largest of five lanes' times.  Here each layer is a step, which
lasts from the end of its gate to the end of the next gate.  For each use u of an expert, a share x
is kept from the use before, a share l is loaded and a share h is computed on the host.  A system
chooses 0 or 1; shares between them make the bound lower.

    h(u) + l(u) + x(before u) ≥ 1         the expert is on the device, or the host computes it
    x(u) ≤ x(before u) + l(u)             what is kept was there, or was loaded
    Σ x of all experts ≤ slots            between any two steps; the first content is free
    clairvoyant:  Σ c·l up to a step ≤ the time until the step's experts end
    information:  Σ c·l of a step    ≤ the time from its gate until its experts end

With g from a gate's end until the control thread has read it and decided, and a for the work
between a layer's experts and the next gate, a step is at least as long as each of

    device     max(g, shared experts) + d·Σ(1 - h) + a
    host       g + H·Σh + a
    control    g + submissions of each expert + launches

The clairvoyant bound lets every expert be loaded at any time before its use.  The information bound
lets it be loaded once its gate is known, as from history alone; what is kept and evicted is still
chosen with all routing known.  The difference is what knowing later layers' experts is worth.
Experts on the disk pass a second cache, host memory and device together, and a lane of their own.

The value is that of the dual program, which is a bound whether or not it is optimal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from moebench.substrate.errors import IntegrityError

#: Most uses of experts in a window, whose program takes about 10 s of one core.
WINDOW_USES = 12_000

#: By how much a solver's dual solution may miss a constraint, relative to the bound.
_TOLERANCE = 1e-6

#: Keys that each MoE layer of each token used.
Used = Sequence[Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Least times in ns of the parts of a token.

    Attributes:
        device, host, link, read: of an expert on the device, on the host, over the link, and from
            the disk (0 if none is there).
        shared: of a layer's shared experts on the device.
        gap: from the end of a gate until what follows from it can be launched.
        on_device, on_host: control thread's time to submit an expert.
        before: from a token's start to the end of its first gate.
        after: by MoE layer, from the end of its experts to the end of the next gate, or the token.
        launches: by MoE layer, control thread's time from its gate to the next one, or the token's
            end, without ``gap`` and experts.
    """

    device: float
    host: float
    link: float
    read: float = 0
    shared: float = 0
    gap: float = 0
    on_device: float = 0
    on_host: float = 0
    before: float = 0
    after: Sequence[float]
    launches: Sequence[float]

    @property
    def step(self) -> float:
        """About how long a layer takes whose experts are all there, in ns."""
        own = self.device + self.on_device + max(self.after) + max(self.launches)
        return own + self.gap + self.shared

    def times(self, factor: float) -> "StepCosts":
        """Return all times multiplied by a factor."""
        scaled = {
            one.name: (factor * np.asarray(getattr(self, one.name))).tolist()
            for one in fields(self)
        }
        return StepCosts(**scaled)


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound of some tokens' time, and by how much the programs' solutions exceed it, in ns."""

    ns: float
    gap_ns: float


@dataclass(slots=True)
class _Program:
    """A linear program: columns with upper limits and prices, rows of sums that have a limit."""

    most: list[float] = field(default_factory=list)
    price: list[float] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)
    _entries: list[tuple[int, int, float]] = field(default_factory=list)

    def column(self, most: float = 1.0, price: float = 0.0) -> int:
        """Add a variable from 0 to ``most``."""
        self.most.append(most)
        self.price.append(price)
        return len(self.most) - 1

    def columns(self, number: int) -> list[int]:
        """Add variables from 0 to 1."""
        return [self.column() for _ in range(number)]

    def at_most(self, limit: float, *terms: tuple[Iterable[int], float]) -> None:
        """Add the row that a sum of columns, each group times its factor, is ``limit`` at most."""
        row = len(self.limit)
        self.limit.append(limit)
        self._entries += [(row, one, factor) for group, factor in terms for one in group]

    def solve(self) -> tuple[float, float]:
        """Return the values of the dual and of the primal solution; raises IntegrityError."""
        rows, columns, values = zip(*self._entries, strict=True)
        size = (len(self.limit), len(self.most))
        matrix = coo_array((values, (rows, columns)), shape=size).tocsr()
        most, limit = np.array(self.most), np.array(self.limit)
        bounds = np.stack([np.zeros_like(most), most], axis=1)
        # Every program has a solution: each expert is loaded for each use.  Where the interior
        # point method finds none, the numbers are too far apart for it.
        for method in ("highs-ipm", "highs-ds"):
            found = linprog(self.price, A_ub=matrix, b_ub=limit, bounds=bounds, method=method)
            if found.status == 0:
                break
        else:
            raise IntegrityError(f"the linear program of a bound was not solved: {found.message}")
        limited = np.isfinite(most)
        dual = found.ineqlin.marginals @ limit
        dual += found.upper.marginals[limited] @ most[limited]
        return float(dual), float(found.fun)


class _Cache:
    """Shares of experts that a memory keeps, and its room, in a program."""

    def __init__(self, program: _Program, room: int, keys: Sequence[int]) -> None:
        self._program, self._room = program, room
        self.kept = dict(zip(keys, program.columns(len(keys)), strict=True))
        self._occupied = program.column(room)
        program.at_most(0.0, (self.kept.values(), 1.0), ([self._occupied], -1.0))

    def step(
        self, keys: Sequence[int], again: Iterable[int], brought: Sequence[int],
        instead: Sequence[Sequence[int]],
    ) -> None:  # fmt: skip
        """Use experts, and keep shares of those that are used again.

        Args:
            brought: the columns of what is brought for each key.
            instead: the columns of what makes up for the rest of each key.
        """
        program, was = self._program, {key: self.kept[key] for key in keys}
        came = dict(zip(keys, brought, strict=True))
        for key, others in zip(keys, instead, strict=True):
            program.at_most(-1.0, ([came[key], was[key], *others], -1.0))
        stay = {key: program.column() for key in again}
        for key, share in stay.items():
            program.at_most(0.0, ([share], 1.0), ([was[key], came[key]], -1.0))
        then, left = program.column(self._room), [was[key] for key in keys]
        program.at_most(
            0.0, ([self._occupied], 1.0), (stay.values(), 1.0), (left, -1.0), ([then], -1.0)
        )
        self._occupied = then
        self.kept |= stay


class _Lane:
    """The link, or the disk, in a program: what it moves takes time before the experts end."""

    def __init__(self, program: _Program, each: float) -> None:
        self._program, self._each = program, each
        self._busy: list[int] = []

    def since_the_start(self, moved: Sequence[int], ends: int, after: float) -> None:
        """Add a step, before whose experts end all that was moved must have ended."""
        busy = self._program.column(np.inf)
        self._program.at_most(0.0, (self._busy, 1.0), (moved, self._each), ([busy], -1.0))
        self._program.at_most(-after, ([busy], 1.0), ([ends], -1.0))
        self._busy = [busy]

    def since_the_gate(self, moved: Sequence[int], lasts: int, others: float) -> None:
        """Add a step that lasts at least as long as what it moves, and others."""
        self._program.at_most(-others, (moved, self._each), ([lasts], -1.0))


def window_ns(
    tokens: Used, slots: int, costs: StepCosts, held: int = 0, foresight: bool = True
) -> tuple[float, float]:
    """Return the values in ns of the dual and of the primal solution for tokens in a row.

    Args:
        slots: number of experts that fit on the device.
        held: number of experts that fit on the device and in host memory, if reads cost time.
        foresight: the clairvoyant bound; otherwise the information bound.
    """
    # The solver's tolerances are absolute: it gets numbers around 1.
    unit = costs.step or 1.0
    costs = costs.times(1 / unit)
    steps = [(layer, list(keys)) for layers in tokens for layer, keys in enumerate(layers)]
    used_again = _used_again([keys for _, keys in steps])
    program, every = _Program(), sorted({key for _, keys in steps for key in keys})
    device, link = _Cache(program, slots, every), _Lane(program, costs.link)
    memories = [_Cache(program, held, every)] if costs.read else []
    disk = _Lane(program, costs.read)
    _hold(program, device, memories, every)
    gap = costs.gap
    ends: list[int] = []
    for (layer, keys), again in zip(steps, used_again, strict=True):
        after = costs.after[layer]
        loads, hosted = program.columns(len(keys)), program.columns(len(keys))
        moved = [(link, loads)]
        device.step(keys, again, loads, [[host] for host in hosted])
        for memory in memories:
            moved.append((disk, program.columns(len(keys))))
            memory.step(keys, again, moved[-1][1], [[]] * len(keys))
        _hold(program, device, memories, again)
        lasts = _duration(program, layer, hosted, costs)
        if foresight:
            began = costs.before if layer == 0 else 0.0
            clock = program.column(np.inf)
            program.at_most(began, ([clock], 1.0), ([*ends, lasts], -1.0))
            ends = [clock]
        for lane, used in moved:
            if foresight:
                lane.since_the_start(used, clock, after)
            else:
                lane.since_the_gate(used, lasts, gap + after)
    constant = len(tokens) * costs.before
    dual, primal = program.solve()
    return (dual + constant) * unit, (primal + constant) * unit


def _hold(
    program: _Program, device: _Cache, memories: Iterable[_Cache], keys: Iterable[int]
) -> None:
    """Let device and host memory together hold at least what the device does."""
    for memory in memories:
        for key in keys:
            program.at_most(0.0, ([device.kept[key]], 1.0), ([memory.kept[key]], -1.0))


def _duration(program: _Program, layer: int, hosted: Sequence[int], costs: StepCosts) -> int:
    """Return the column of a step's duration, at least as long as its three chains."""
    n, gap, after = len(hosted), costs.gap, costs.after[layer]
    device, host = costs.device, costs.host
    submit, more = costs.on_device, costs.on_host - costs.on_device
    lasts = program.column(np.inf, 1.0)
    first = max(costs.shared, gap)
    program.at_most(-(first + device * n + after), (hosted, -device), ([lasts], -1.0))
    program.at_most(-(gap + after), (hosted, host), ([lasts], -1.0))
    launches = gap + submit * n + costs.launches[layer]
    program.at_most(-launches, (hosted, more), ([lasts], -1.0))
    return lasts


def _used_again(steps: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each step those of its keys that a later step uses."""
    later: set[int] = set()
    found = []
    for keys in reversed(steps):
        found.append([key for key in keys if key in later])
        later.update(keys)
    return found[::-1]


def windows(tokens: Used) -> list[Used]:
    """Divide the tokens of a text into equal windows of at most `WINDOW_USES` uses, if possible."""
    uses = sum(len(keys) for layers in tokens for keys in layers)
    number = max(1, min(len(tokens), -(-uses // WINDOW_USES)))
    ends = [round(i * len(tokens) / number) for i in range(number + 1)]
    return [tokens[a:b] for a, b in pairwise(ends)]


def bound_of(
    parts: Iterable[Used], slots: int, costs: StepCosts, held: int = 0, foresight: bool = True
) -> Bound:
    """Return the bound of windows of decoded tokens, each with free first content.

    Args:
        slots, held, foresight: as of `window_ns`.

    Raises IntegrityError: a program was not solved.
    """
    total, gap = 0.0, 0.0
    for part in parts:
        dual, primal = window_ns(part, slots, costs, held, foresight)
        total += dual
        gap += primal - dual
    return Bound(total * (1 - _TOLERANCE), gap + total * _TOLERANCE)
