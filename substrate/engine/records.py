"""Records of the engine: a layer's decisions and transfers, a batch's outcome; checks of plans."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import NamedTuple, cast

from moebench.substrate.engine.decisions import (
    EXPERT_OF,
    NO_EXPERT,
    Active,
    Fetch,
    LayerView,
    Plan,
    Routed,
)
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Span
from moebench.substrate.memory.residency import InForms
from moebench.substrate.terms import Ids


class Ahead(NamedTuple):
    """The routing and plan of a layer that was routed while the one before it computed.

    ``on_host`` holds, by expert, the transfer that returns the host's output.
    """

    expected_TK: Ids
    routed: Routed
    plan: Plan
    on_host: dict[int, Span]


class Layer(NamedTuple):
    """The decisions about one layer.

    ``rows`` and ``keys`` are of all its experts, ascending; ``active`` and ``plan`` of experts that
    had not begun on the host already.  The device can compute the experts ``ready`` at once, and
    does so with ``leading_ready``, those that lead the plan.  The experts ``coming`` are in flight.
    ``forms`` holds the form in which an expert is computed, if it is not form 0.
    """

    view: LayerView
    routed: Routed
    rows: dict[int, int]
    keys: list[int]
    active: Active
    plan: Plan
    ahead: Ahead | None
    ready: Sequence[int]
    leading_ready: tuple[int, ...]
    coming: Sequence[int]
    forms: Mapping[int, int]


class Loads(NamedTuple):
    """A layer's transfers: by expert the submitted ones, and fetches that wait for a slot."""

    arrivals: Mapping[int, Span]
    waiting: Sequence[Fetch]


NO_LOADS = Loads({}, ())


class HostWork(NamedTuple):
    """Transfers of the host's outputs: those due in this layer's sum, and in the next one's."""

    due: Sequence[Span]
    deferred: Sequence[Span]


NOT_ON_HOST = HostWork((), ())


@dataclass(slots=True)
class Generation:
    """The generated tokens of a batch, with their times in ns of the machine's clock."""

    tokens: list[list[int]]
    started_ns: int
    token_ends_ns: list[int] = field(default_factory=list)
    #: For each decoded token: the keys that each MoE layer used, in order.
    used: list[list[list[int]]] = field(default_factory=list)
    #: For each decoded token: time in ns before it in which the caller used the computer.
    paused_ns: list[int] = field(default_factory=list)

    @property
    def ttft_ns(self) -> int:
        """Time from the batch's start to the first token, in ns."""
        return self.token_ends_ns[0] - self.started_ns

    @property
    def steps_ns(self) -> list[int]:
        """Time of each further token in ns, without the pause before it."""
        steps = [b - a for a, b in pairwise(self.token_ends_ns)]
        return [took - n for took, n in zip_longest(steps, self.paused_ns, fillvalue=0)]


def rows_of(routed: Routed) -> dict[int, int]:
    """Return the number of rows of each expert, by ascending expert."""
    counts = Counter(routed.ids_TK.ravel().tolist())
    del counts[NO_EXPERT]
    return dict(sorted(counts.items()))


def check(plan: Plan, active: Active, view: LayerView) -> None:
    """Check that a plan has every active expert once, and loads those that the device lacks.

    Raises UsageError: the system's assignment returned an invalid plan.
    """
    device, host, deferred, load, again, _ = plan
    planned = [*device, *host, *deferred] if host or deferred else device
    if len(planned) != len(active.rows) or not set(planned).issuperset(active.rows):
        raise UsageError(
            f"layer {view.layer}: the system planned experts {list(planned)}, active are "
            f"{list(active.rows)}; each must stand in the plan once"
        )
    if deferred and view.next_layer is None:
        raise UsageError(
            f"layer {view.layer}: no layer with experts follows, to which the outputs of "
            f"{list(deferred)} could be deferred; check `view.next_layer`"
        )
    if load or active.absent:
        needed = set(active.absent).difference(host, deferred)
        fetched = {fetch.expert for fetch in load if fetch.layer == view.layer}
        if fetched != needed or len(load) != len(needed):
            _check_fetches(load, needed, active, view)
    if again and not {*again} <= {*map(EXPERT_OF, load)}:
        raise UsageError(
            f"layer {view.layer}: the plan copies experts {sorted({*again})} again; allowed: those "
            "that it loads"
        )


def _check_fetches(
    load: Sequence[Fetch], needed: set[int], active: Active, view: LayerView
) -> None:
    layer, fetched = view.layer, {fetch.expert for fetch in load if fetch.layer == view.layer}
    if len(fetched) != len(load):
        raise UsageError(
            f"layer {layer}: the plan's fetches {[tuple(f[:2]) for f in load]} are not of "
            "different experts of this layer"
        )
    if not needed <= fetched:
        raise UsageError(
            f"layer {layer}: the device is to compute {sorted(needed - fetched)}, which it does "
            "not have and the plan does not load"
        )
    forms = view.residency.forms
    for fetch in load:
        expert, form = fetch.expert, fetch.form
        check_form(form, len(forms))
        if expert is None or forms[form].is_held(expert):
            raise UsageError(
                f"layer {layer}: the plan loads expert {expert}, which "
                + ("is none" if expert is None else "is on the device or on its way already")
            )


def no_room(evict: object, layer: int) -> UsageError:
    """Return the error that a layer must load an expert and no other can be evicted for it."""
    return UsageError(
        f"{type(evict).__name__} finds no expert to evict for one that layer {layer} must load; "
        "swap it: --set evict=lru"
    )


def replaces_experts(route: object) -> UsageError:
    """Return the error that a routing replaced an expert although it says that it is lossless."""
    return UsageError(
        f"{type(route).__name__} says that it is lossless and replaced an expert; let its "
        "`lossless_at` say no"
    )


def names_no_expert() -> UsageError:
    """Return the error that a speculative prefetch is of a layer's non-expert weights."""
    return UsageError(
        "a speculative prefetch must name an expert; a layer's common weights are fetched ahead by "
        'one whose discipline is "committed"'
    )


def check_upload(fetch: Fetch) -> None:
    """Refuse an upload of an expert that does not stay.

    Raises UsageError: names it.
    """
    if not fetch.keep:
        raise UsageError(
            f"an upload of expert {fetch.expert} in layer {fetch.layer} has keep=False; allowed: "
            "uploads of experts that stay"
        )


def check_form(form: int, forms: int) -> None:
    """Refuse a form that a system does not declare.

    Raises UsageError: names the allowed ones.
    """
    if not 0 <= form < forms:
        raise UsageError(f"form {form} of a record; allowed: 0 to {forms - 1} (`System.forms`)")


def forms_of(plan: Plan, view: LayerView) -> dict[int, int]:
    """Return the forms of experts that are not computed in form 0, where records have several.

    Raises:
        UsageError: there is no such form, or an expert is not in it and the plan does not load it.
    """
    where, found = cast(InForms, view.residency), dict[int, int]()
    loads = {fetch.expert: fetch.form for fetch in plan.load}
    for form in (*loads.values(), *plan.forms.values()):
        check_form(form, len(where.forms))
    for expert in plan.device:
        there, loaded = where.is_held(expert), loads.get(expert)
        form = where.best(expert) if there else 0
        if loaded is not None:
            form = min(form, loaded) if where.is_resident(expert) else loaded
        named = plan.forms.get(expert, form)
        if named != form and named != loaded and not where.forms[named].is_held(expert):
            raise UsageError(
                f"layer {view.layer}: the plan computes expert {expert} in form {named}, in which "
                "it is not on the device, and which it does not load"
            )
        found[expert] = named
    found |= {expert: plan.forms.get(expert, 0) for expert in (*plan.host, *plan.deferred)}
    return {expert: form for expert, form in found.items() if form}
