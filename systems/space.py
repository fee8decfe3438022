"""The space of compositions: the policies of each decision, what they need, and their options.

Everything here is derived: from the ranges that options declare (`substrate.engine.options`), from
the options' types, and from attributes of the policies' classes.

    next(one for one in policies() if one.name == "score").dimensions[0].key    # "evict.window"
"""

import dataclasses
import types
import typing
from typing import Any, Literal

from moebench.substrate.engine.options import Allowed, allowed_values
from moebench.substrate.engine.policies import Policy, Predictor
from moebench.substrate.engine.system import System
from moebench.substrate.terms import Lookahead
from moebench.systems.options import options_of
from moebench.systems.registry import POLICIES, policy_class


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """An option of a policy: a number, or a choice.

    Attributes:
        default: it may lie outside the range that is searched, as a 0 that means the model's top-k.
        low, high: the least and the largest number; None is no limit.
        above, below: whether ``low`` and whether ``high`` itself is not allowed.
        scale: whether numbers are compared by differences or by ratios.
        choices: the values of a choice.  Of a number, None where that is a value besides numbers.
        searched: whether a search varies the option.
        search_low, search_high: the numbers between which a search varies it.
        needs: what another value than the default needs beyond what the policy needs.
    """

    decision: str
    policy: str
    option: str
    kind: Literal["integer", "number", "choice"]
    default: Any
    low: float | None = None
    high: float | None = None
    above: bool = False
    below: bool = False
    scale: Literal["linear", "log"] = "linear"
    choices: tuple[Any, ...] = ()
    searched: bool = False
    search_low: float | None = None
    search_high: float | None = None
    needs: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The option as ``--set`` names it: ``evict.window``."""
        return f"{self.decision}.{self.option}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpace:
    """A policy of a decision.

    Attributes:
        what: the first line of its docstring.
        needs: what it needs with its default options, as words of `NEEDS`, sorted.
        dimensions: its options, in the order of their fields.  Texts and tables are left out.
    """

    decision: str
    name: str
    what: str
    needs: tuple[str, ...]
    dimensions: tuple[Dimension, ...]


#: What a policy can need, and what each word means.
NEEDS = {
    "host": "a host that computes experts",
    "hidden states": "the hidden states that gates read",
    "prompt embeddings": "the embeddings of prompts",
    "token embeddings": "the embeddings of a pass's tokens",
    "token norms": "the norms of the states that gates read",
    "weight norms": "the norms of experts' weights",
    "gate scores": "the scores of all experts, which not every trace holds",
    "texts": "recorded routing of other texts, to learn from",
    "losses": "a model that computes, to measure what rounded experts lose",
    "sensitivities": "a model that computes, to measure how its loss depends on each layer",
    "predictions": "predictions of later layers by the model, which a trace must have recorded",
    "the future": "the routing of later passes or layers, which only a replay knows",
    "one form": "a system that holds each expert's record in one form",
}


def policies() -> list[PolicySpace]:
    """Return all policies, by decision, in the order of the registry."""
    return [
        _policy(decision, name, policy_class(decision, name))
        for decision, names in POLICIES.items()
        for name in names
    ]


def _policy(decision: str, name: str, found: type[Policy]) -> PolicySpace:
    return PolicySpace(
        decision=decision,
        name=name,
        what=(found.__doc__ or "").splitlines()[0],
        needs=needs_of(found()),
        dimensions=dimensions(decision, name, found),
    )


def needs_of(policy: Policy) -> tuple[str, ...]:
    """Return what a policy needs with its present options, as words of `NEEDS`, sorted."""
    predictor: Predictor | None = getattr(policy, "predictor", None)
    lookahead = Lookahead.NONE if predictor is None else predictor.lookahead
    several_forms = getattr(policy, "takes_forms", True) and not getattr(policy, "own_forms", ())
    found = {
        "host": policy.needs_host,
        "hidden states": policy.reads_hidden,
        "prompt embeddings": policy.reads_embedding,
        "token embeddings": policy.reads_token_embeddings,
        "token norms": policy.reads_token_norms,
        "weight norms": policy.reads_weight_norms,
        "gate scores": policy.reads_scores,
        "texts": policy.calibrates,
        "losses": policy.calibrates and "loss" in policy.learns_from,
        "sensitivities": policy.calibrates and "sensitivity" in policy.learns_from,
        "predictions": lookahead is not Lookahead.NONE,
        "the future": getattr(policy, "clairvoyant", False) or lookahead is Lookahead.EXACT,
        "one form": not several_forms or getattr(policy, "divides", False),
    }
    return tuple(sorted(word for word, needed in found.items() if needed))


def dimensions(
    decision: str, name: str, found: type[Policy] | type[System]
) -> tuple[Dimension, ...]:
    """Return the options of a class, in the order of their fields; texts and tables are left out.

    Args:
        decision, name: as of a `Dimension`; empty for a system's own options.
    """
    # A class without options of its own need not be a dataclass.
    if not dataclasses.is_dataclass(found):
        return ()
    defaults = {one.name: one.default for one in dataclasses.fields(found)}
    declared = allowed_values(found)
    made = []
    for option, annotation in options_of(found).items():
        kind, choices = _kind(annotation)
        if kind is None:
            continue
        allowed = declared.get(option, Allowed())
        search_low, search_high = _searched_range(kind, allowed)
        made.append(
            Dimension(
                decision=decision, policy=name, option=option, kind=kind, choices=choices,
                default=defaults[option], low=allowed.low, high=allowed.high, above=allowed.above,
                below=allowed.below, scale=allowed.scale, searched=bool(allowed.searched),
                search_low=search_low, search_high=search_high, needs=allowed.needs,
            )
        )  # fmt: skip
    return tuple(made)


def _kind(annotation: Any) -> tuple[Literal["integer", "number", "choice"] | None, tuple[Any, ...]]:
    """Return the kind of an option's type and its choices; no kind for texts and tables."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        none = (None,) if len(parts) < len(typing.get_args(annotation)) else ()
        if len(parts) != 1:
            return None, ()
        kind, choices = _kind(parts[0])
        return kind, (*choices, *none)
    if typing.get_origin(annotation) is Literal:
        return "choice", typing.get_args(annotation)
    if annotation is bool:
        return "choice", (False, True)
    if annotation is int:
        return "integer", ()
    return ("number", ()) if annotation is float else (None, ())


def _searched_range(kind: str, allowed: Allowed) -> tuple[float | None, float | None]:
    if kind == "choice" or allowed.searched is False:
        return None, None
    return (allowed.low, allowed.high) if allowed.searched is True else allowed.searched
