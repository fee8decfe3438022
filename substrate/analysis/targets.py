"""Targets of routing statistics: ranges of their values in real models of a family.

``catalogue/routing.yaml`` holds evidence: published ranges, and ranges measured on recorded traces
(described in its first lines).  A target is the range that spans all evidence for a model.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from moebench.substrate.errors import InputError

ROUTING = Path(__file__).parents[1] / "catalogue" / "routing.yaml"

#: Largest relative distance from the nearer bound at which a value is still "near".
NEAR = 0.15

Judgement = Literal["in range", "near", "off"]
JUDGEMENTS: tuple[Judgement, ...] = get_args(Judgement)


class Target(NamedTuple):
    """The range of a statistic over real models of a family, and the sources of the range."""

    low: float
    high: float
    source: str

    def spanning(self, other: Self | None) -> "Target":
        """Return the smallest range that includes this range and another."""
        if other is None:
            return self
        sources = dict.fromkeys((other.source, self.source))
        return Target(min(self.low, other.low), max(self.high, other.high), "; ".join(sources))


def _ascending(bounds: tuple[float, float]) -> tuple[float, float]:
    if not 0 <= bounds[0] <= bounds[1]:
        raise ValueError("expected two bounds, the lower first")
    return bounds


class Evidence(BaseModel):
    """Ranges of routing statistics from one source.

    Attributes:
        models: catalogue names of the models with these ranges.
        source: origin of the ranges.
        ranges: lowest and highest value by statistic, a dotted path into `statistics.summary`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: tuple[str, ...]
    source: str
    ranges: dict[str, Annotated[tuple[float, float], AfterValidator(_ascending)]]


class Routing(BaseModel):
    """All evidence: published, and measured with ``moebench models targets --write``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    published: tuple[Evidence, ...]
    measured: tuple[Evidence, ...]


def read_routing(file: Path = ROUTING) -> Routing:
    """Read the evidence for routing statistics from a file.

    Raises InputError: the file cannot be read, or holds no evidence.
    """
    try:
        return Routing.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{file}: {where}: {first['msg']}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{file}: cannot be read ({reason})") from error


@cache
def _all() -> dict[str, dict[str, Target]]:
    found: dict[str, dict[str, Target]] = {}
    routing = read_routing()
    for evidence in (*routing.published, *routing.measured):
        for model in evidence.models:
            targets_ = found.setdefault(model, {})
            for key, (low, high) in evidence.ranges.items():
                targets_[key] = Target(low, high, evidence.source).spanning(targets_.get(key))
    return found


def targets(model: str) -> Mapping[str, Target]:
    """Return a model's targets by statistic, a dotted path into `statistics.summary`.

    Empty if there is no evidence for the model.
    """
    return _all().get(model, {})


def value_at(summary: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted path of a summary, or None if there is none."""
    value: Any = summary
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def judge(value: float, target: Target) -> Judgement:
    """Return whether a value is in a target's range, within 15 % of its nearer bound, or off."""
    if target.low <= value <= target.high:
        return "in range"
    bound = target.low if value < target.low else target.high
    return "near" if abs(value - bound) <= NEAR * bound else "off"
