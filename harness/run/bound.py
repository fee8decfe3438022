"""Lower bounds of a run's decoding time: costs that no system avoids, and the bounds from them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from moebench.harness.run.rounding import ms
from moebench.substrate.analysis.bound import LeastCosts, least_decode_ns
from moebench.substrate.analysis.clairvoyant import StepCosts, Used, bound_of, windows
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.records import Generation
from moebench.substrate.machines.protocol import Lane, Machine, Op, OpKind
from moebench.substrate.machines.simulated import SimulatedMachine

#: The bounds by linear programs, and whether each knows later layers' experts.
PROGRAMS = {"clairvoyant_ms": True, "information_ms": False}

#: Most uses of experts for which the linear programs are solved: 20 to 30 s of one core.
MOST_USES = 16_000


def bound(
    engine: Engine, generations: Sequence[Generation], clairvoyant: bool = False
) -> dict[str, Any]:
    """Return the ``bound`` part of a document: lower bounds of mean TPOT, and the ratio to one.

    Args:
        clairvoyant: whether the linear programs are solved (`clairvoyant_bounds`).

    Raises IntegrityError: a linear program was not solved.
    """
    nothing = dict.fromkeys(("tpot_ms", "ratio", *PROGRAMS, "programs"))
    steps = sum(len(g.steps_ns) for g in generations)
    if not steps:
        return nothing
    slots, held = _rooms(engine)
    least = sum(
        least_decode_ns(g.used, slots, least_costs(engine, len(g.tokens)), held)
        for g in generations
    )
    actual = sum(sum(g.steps_ns) for g in generations)
    found = {"tpot_ms": ms(least / steps), "ratio": round(actual / least, 4)}
    programs = clairvoyant_bounds(engine, generations) if clairvoyant else {}
    return {**nothing, **found, **programs}


def _rooms(engine: Engine) -> tuple[int, int]:
    """Return how many experts fit on the device, and on it and in host memory together."""
    slots, memory = engine.cache.capacity, engine.machine.host_memory
    return slots, slots + (memory.capacity if memory is not None else 0)


def waits_for_gates(engine: Engine) -> bool:
    """Return whether each layer's experts were computed after its gate and before the next one."""
    decode = engine.tally.by_phase["decode"]
    system = engine.system
    early = decode.routed_ahead or decode.deferred or system.reads_unfinished
    early = early or system.route.routes_passes or system.divides
    return not early


def clairvoyant_bounds(engine: Engine, generations: Sequence[Generation]) -> Mapping[str, Any]:
    """Return the bounds of `substrate.analysis.clairvoyant`, in ms a decoded token.

    They are computed for as many windows of tokens as `MOST_USES` allows, evenly spaced in the run.
    ``programs`` says for how many tokens, of at most how many in a window, how long these tokens
    took in the run, and by how much the programs' solutions exceed the bounds.  Nothing is returned
    for measured runs, whose operations have no exact costs, and for systems that compute a layer's
    experts before its gate or after the next layer's, which the bounds do not cover.
    """
    if not isinstance(engine.machine, SimulatedMachine) or not waits_for_gates(engine):
        return {}
    slots, held = _rooms(engine)
    costs = step_costs(engine.machine, engine, len(generations[0].tokens))
    chosen = _spaced([window for g in generations for window in _windows(g)])
    tokens = sum(len(part) for part, _ in chosen)
    found = [
        bound_of([part for part, _ in chosen], slots, costs, held, foresight)
        for foresight in PROGRAMS.values()
    ]
    values = zip(PROGRAMS, (ms(one.ns / tokens) for one in found), strict=True)
    return {
        **dict(values),
        "programs": {
            "tokens": tokens,
            "window": max(len(part) for part, _ in chosen),
            "tpot_ms": ms(sum(took for _, took in chosen) / tokens),
            "gap_ms": ms(max(one.gap_ns for one in found) / tokens),
        },
    }


def _windows(generation: Generation) -> list[tuple[Used, int]]:
    """Return the windows of a batch's decoded tokens, each with the time that it took in ns."""
    found, first = [], 0
    for part in windows(generation.used):
        then = first + len(part)
        found.append((part, sum(generation.steps_ns[first:then])))
        first = then
    return found


def _spaced(parts: Sequence[tuple[Used, int]]) -> list[tuple[Used, int]]:
    """Return evenly spaced windows that use at most `MOST_USES` experts together; at least one."""
    uses = [sum(len(keys) for layers in part for keys in layers) for part, _ in parts]
    number = len(parts)
    while number > 1 and sum(uses[i] for i in _spread(number, len(parts))) > MOST_USES:
        number -= 1
    return [parts[i] for i in _spread(number, len(parts))]


def _spread(number: int, of: int) -> list[int]:
    return [i * of // number for i in range(number)]


def step_costs(machine: SimulatedMachine, engine: Engine, batch: int) -> StepCosts:
    """Return the least times of a token's parts, whichever system runs.

    Experts are copied from page-locked memory, one copy each, and the host may compute them, with
    fused kernels, handed over together or one by one; all else costs what it costs the run's own
    system.
    """
    shape = engine.model.shape
    rows, cached = (batch,), engine.cached * batch

    def both(*kinds: OpKind) -> np.ndarray:
        """Return the times of operations on the device, and of the control thread for them."""
        ops = [
            Op(kind, 0, rows, (), *((cached, cached) if kind is OpKind.ATTEND else ()))
            for kind in kinds
        ]
        return np.array([
            sum(machine.estimate_ns(op, Lane.DEVICE) for op in ops),
            sum(machine.control_ns(op, Lane.DEVICE) for op in ops),
        ])  # fmt: skip

    dense, gated = both(OpKind.ATTEND, OpKind.DENSE), both(OpKind.ATTEND, OpKind.GATE)
    combine, head = both(OpKind.COMBINE), both(OpKind.HEAD) + machine.sync_ns
    shared = both(OpKind.SHARED) if shape.shared_width else np.zeros(2)
    layers = [-1, *shape.moe_layers, shape.num_layers]
    between = [dense * (b - a - 1) for a, b in pairwise(layers)]
    last = len(shape.moe_layers)
    after = [combine + between[i] + (head if i == last else gated) for i in range(1, len(between))]
    forms = engine.cache.used_forms
    one = [Op(OpKind.EXPERT, 0, (1,), (0,), form=form) for form in forms]
    most = min(shape.num_experts, shape.top_k * batch)
    at_once = [Op(OpKind.EXPERT, 0, (1,) * n, tuple(range(n)), form=form)
               for form in forms for n in {1, most}]  # fmt: skip
    return StepCosts(
        device=min(machine.estimate_ns(op, Lane.DEVICE) for op in one),
        host=min(machine.costs.least_host_ns(op) / len(op.rows) for op in at_once),
        link=min(machine.costs.least_load_ns(form) for form in forms),
        read=min(least_read_ns(machine, form) for form in forms),
        shared=shared[0],
        gap=machine.sync_ns + machine.decision_ns,
        on_device=min(machine.control_ns(op, Lane.DEVICE) for op in one),
        on_host=min(_handed_ns(machine, op) / len(op.rows) for op in at_once),
        before=max(between[0] + gated),
        after=[part[0] for part in after],
        launches=[part[1] + shared[1] for part in after],
    )


def _handed_ns(machine: Machine, op: Op) -> int:
    """Return the control thread's time to hand experts to the host and take their outputs back."""
    back = Op(OpKind.RETURN, 0, (1,), op.experts)
    return machine.control_ns(op, Lane.HOST) + machine.control_ns(back, Lane.D2H)


def least_costs(engine: Engine, batch: int) -> LeastCosts:
    """Return the machine's time for each operation that no system can avoid."""
    machine, shape = engine.machine, engine.model.shape
    forms = engine.cache.used_forms
    one = Op(OpKind.EXPERT, 0, (1,), (0,), form=forms[0])
    each = [Op(OpKind.EXPERT, 0, (1,), (0,), form=form) for form in forms]
    # A pass that is routed at its start runs no gate, and waits for its routing once.
    at_start = engine.system.route.routes_passes
    reads = 2 if at_start else len(shape.moe_layers) + 1
    per_layer = [OpKind.ATTEND, *([] if at_start else [OpKind.GATE]), OpKind.COMBINE]
    if shape.shared_width:
        per_layer.append(OpKind.SHARED)
    layers, rows = len(shape.moe_layers), (batch,)
    common = [Op(kind, 0, rows) for kind in per_layer] * layers
    common += [Op(kind, 0, rows) for kind in (OpKind.ATTEND, OpKind.DENSE)] * len(
        shape.dense_layers
    )
    common.append(Op(OpKind.HEAD, -1, rows))
    uses_host = machine.has_host_lane and engine.system.assign.uses_host
    submit = machine.control_ns(one, Lane.DEVICE)
    host = None
    if uses_host:
        # Experts that are handed over together share what a hand-over costs: by all of a layer.
        together = shape.num_experts if engine.system.host_together else 1
        at_once, experts = (1,) * together, tuple(range(together))
        handed = [Op(OpKind.EXPERT, 0, at_once, experts, form=form) for form in forms]
        back = Op(OpKind.RETURN, 0, (1,), experts)
        on_host = machine.control_ns(handed[0], Lane.HOST) + machine.control_ns(back, Lane.D2H)
        submit = min(submit, on_host // together)
        host = min(machine.estimate_ns(op, Lane.HOST) for op in handed) / together
    # A gate's launch is left out: a layer that is routed ahead has none, but its experts are read
    # back, too.
    launches = sum(
        machine.control_ns(op, Lane.DEVICE) for op in common if op.kind is not OpKind.GATE
    )
    return LeastCosts(
        common=sum(machine.estimate_ns(op, Lane.DEVICE) for op in common),
        device=min(machine.estimate_ns(op, Lane.DEVICE) for op in each),
        link=min(
            machine.estimate_ns(Op(OpKind.LOAD, 0, form=form), machine.load_path[-1])
            for form in forms
        ),
        host=host,
        read=min(least_read_ns(machine, form) for form in forms),
        control=launches + layers * machine.decision_ns + reads * machine.sync_ns,
        submit=submit,
    )


def least_read_ns(machine: Machine, form: int = 0) -> int:
    """Return the time to read one expert record from disk in a queue; 0 if none is on disk."""
    if machine.host_memory is None:
        return 0
    return machine.estimate_ns(Op(OpKind.READ, 0, form=form, queued=True), Lane.DISK)
