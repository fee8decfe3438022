"""The compositions among which a search chooses, and how the trials of Optuna choose them.

A composition is `moe-ondemand` with its six decisions replaced, their options, and a few options of
a system: whether layers share slots, whether the host computes a layer's experts as one operation,
with which kernels it multiplies quantised ones, whether copies are from page-locked memory, and
whether experts in flight are waited for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moebench.substrate.engine.system import System
from moebench.substrate.errors import MoeBenchError
from moebench.systems.compatible import why_not
from moebench.systems.options import build, describe, options_of
from moebench.systems.registry import DECISIONS
from moebench.systems.space import Dimension, PolicySpace, policies

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

#: The system whose decisions are replaced.
BASE = "moe-ondemand"

#: Options of the system itself that are chosen, and their values as `--set` spells them.
RUNTIME: Mapping[str, Sequence[str]] = {
    "scope": ("global", "layer"),
    "host_together": ("False", "True"),
    "host_kernels": ("unpacking", "fused"),
    "pinned_copies": ("null", "true"),
    "in_flight": ("wait", "host"),
}

#: The choice of a number from its range, beside a default that is none of it.
_NUMBER = "number"

#: What a policy needs whose learning takes minutes, besides networks that are trained.
_SLOW = frozenset({"losses", "sensitivities"})

#: Changed decisions and options, as ``--set`` takes them.
Sets = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The policies that may be chosen for each decision, and α's range where routing has one.

    Attributes:
        by_decision: for each decision, the spaces of its policies by name.
        lossy: whether compositions that change the model's output may be chosen.
    """

    by_decision: Mapping[str, Mapping[str, PolicySpace]]
    lossy: bool

    def suggest(self, trial: "BaseTrial") -> dict[str, str]:
        """Let a trial choose a composition; options are chosen for the chosen policies alone."""
        sets = {
            name: str(trial.suggest_categorical(name, list(values)))
            for name, values in RUNTIME.items()
        }
        for decision, spaces in self.by_decision.items():
            name = sets[decision] = str(trial.suggest_categorical(decision, list(spaces)))
            for one in _searched(spaces[name]):
                sets[one.key] = _suggest(trial, one)
        if sets.get("route") == "expert-cache":
            sets["alpha"] = f"{trial.suggest_float('alpha', 0.02, 0.6):.4g}"
        return {key: value for key, value in sets.items() if value != _DEFAULTS.get(key)}

    def defaults(self, decision: str, name: str) -> dict[str, Any]:
        """Return a trial's parameters of a policy with its default options."""
        found: dict[str, Any] = {decision: name}
        for one in _searched(self.by_decision[decision][name]):
            found |= _param(one, one.default)
        return found

    def params(self, system: System) -> dict[str, Any] | None:
        """Return a trial's parameters for a system, as near to it as the space allows.

        Numbers outside their range are moved to its end.  None if a decision of it is not chosen
        from the space, or if it holds records in several forms.
        """
        if len(system.forms) > 1:
            return None
        said = describe(system)
        found: dict[str, Any] = {}
        for name, values in RUNTIME.items():
            given = said[name]
            found[name] = next((v for v in values if v.lower() == given.lower()), values[0])
        for decision, spaces in self.by_decision.items():
            name = said[decision]
            if name not in spaces:
                return None
            found[decision] = name
            for one in _searched(spaces[name]):
                found.update(_param(one, getattr(system.policies[decision], one.option)))
        if found["route"] == "expert-cache":
            found["alpha"] = min(max(system.alpha, 0.02), 0.6)
        return found


def part_of(key: str, decision: str) -> bool:
    """Return whether an option is a decision, or an option of it; α is one of the route."""
    own = key == decision or key.startswith(f"{decision}.")
    return own or (decision, key) == ("route", "alpha")


_DEFAULTS = {name: values[0] for name, values in RUNTIME.items()}


def space_of(
    usable: Callable[[Sets], bool], lossy: bool, learned: bool,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Space:  # fmt: skip
    """Return the space of policies that the base takes in the place that is asked about.

    Args:
        usable: whether a composition can be prepared there.
        lossy: take routings that change the model's output, too.
        learned: take policies that train networks, which takes minutes, too.
    """
    by_decision: dict[str, dict[str, PolicySpace]] = {decision: {} for decision in DECISIONS}
    found = policies()
    for number, one in enumerate(found, 1):
        progress(number, len(found))
        if one.decision in by_decision and _chosen(one, lossy, learned, usable):
            by_decision[one.decision][one.name] = one
    return Space(by_decision=by_decision, lossy=lossy)


def _chosen(one: PolicySpace, lossy: bool, learned: bool, usable: Callable[[Sets], bool]) -> bool:
    if "the future" in one.needs:
        return False
    system = _built({one.decision: one.name})
    if system is None:
        # Alone it does not fit the base: with a host that computes, say, it may.
        system = _built({one.decision: one.name, "assign": "host"})
        sets = {one.decision: one.name, "assign": "host"}
    else:
        sets = {one.decision: one.name}
    if system is None or system.clairvoyant or len(system.forms) > 1:
        return False
    if not lossy and not system.lossless:
        return False
    policy = system.policies[one.decision]
    if not learned and ("epochs" in options_of(type(policy)) or _SLOW & {*one.needs}):
        return False
    return usable(sets)


def _built(sets: Sets) -> System | None:
    try:
        return build(BASE, sets)
    except MoeBenchError:
        return None


def refusal(sets: Sets, lossy: bool) -> str | None:
    """Return why a composition is not tried, known without running it; None if it may be.

    Args:
        lossy: whether it may change the model's output.
    """
    try:
        system = build(BASE, sets)
    except MoeBenchError as error:
        return str(error)
    if not (lossy or system.lossless):
        return "it changes the model's output"
    return why_not(system)


def _searched(space: PolicySpace) -> Iterable[Dimension]:
    return (one for one in space.dimensions if one.searched)


def _name(one: Dimension) -> str:
    """Return a trial's name of an option: two policies' options of one name differ."""
    return f"{one.decision}={one.policy}.{one.option}"


def _suggest(trial: "BaseTrial", one: Dimension) -> str:
    name = _name(one)
    if one.kind == "choice":
        return str(trial.suggest_categorical(name, [_spelled(v) for v in one.choices]))
    if _apart(one):
        choice = trial.suggest_categorical(f"{name}?", [_spelled(one.default), _NUMBER])
        if choice != _NUMBER:
            return str(choice)
    low, high = _range(one)
    log = one.scale == "log" and low > 0
    if one.kind == "integer":
        return str(trial.suggest_int(name, int(low), int(high), log=log))
    return f"{trial.suggest_float(name, low, high, log=log):.4g}"


def _param(one: Dimension, value: Any) -> dict[str, Any]:
    """Return a trial's parameters of an option's value."""
    name = _name(one)
    if one.kind == "choice":
        return {name: _spelled(value)}
    apart = _apart(one)
    if apart and value == one.default:
        return {f"{name}?": _spelled(value)}
    low, high = _range(one)
    kind = int if one.kind == "integer" else float
    return ({f"{name}?": _NUMBER} if apart else {}) | {name: kind(min(max(value, low), high))}


def _apart(one: Dimension) -> bool:
    """Whether an option's default is outside its range: null, or 0 for the model's top-k."""
    low, high = _range(one)
    return one.default is None or not low <= one.default <= high


def _range(one: Dimension) -> tuple[float, float]:
    assert one.search_low is not None
    assert one.search_high is not None
    return one.search_low, one.search_high


def _spelled(value: Any) -> str:
    return "null" if value is None else str(value)
