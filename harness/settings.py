"""The settings catalogue: the papers' experimental settings, each a model on a machine."""

from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.substrate.models.shape import Precision
from moebench.workloads.catalogue import few_shot_of, workload

CATALOGUE = Path(__file__).parent / "catalogue" / "settings.yaml"


class Setting(BaseModel):
    """One experimental setting of a paper: model, machine, precision and limits.

    Attributes:
        software: the kind of software that the paper's code ran on.
        alpha: the paper's substitution threshold, for systems that have one.
        cache_ratio, slots: how many routed experts fit on the device, as a share of all or as a
            count; without either, as many as its memory holds.
        input_tokens, new_tokens: lengths that the paper fixes.
        device_memory_gib: device memory for weights and KV cache, in GiB; None is all but context
            and workspace.
        free_host_gb: host memory that experts may use, in GB; None is all of the machine's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    paper: str
    model: str
    machine: str
    software: str
    precision: Precision
    alpha: float | None = None
    cache_ratio: float | None = Field(default=None, gt=0, le=1)
    slots: int | None = Field(default=None, gt=0)
    input_tokens: int | None = Field(default=None, gt=0)
    new_tokens: int | None = Field(default=None, gt=0)
    device_memory_gib: float | None = Field(default=None, gt=0)
    free_host_gb: float | None = Field(default=None, gt=0)


@lru_cache
def settings() -> dict[str, Setting]:
    """Return all settings of the catalogue by name."""
    import yaml

    rows = yaml.safe_load(CATALOGUE.read_text())
    return {name: Setting(name=name, **row) for name, row in rows.items()}


def setting(name: str) -> Setting:
    """Return the setting of a name, ignoring case.

    Raises UnknownNameError: no setting has this name.
    """
    found = settings().get(name.upper())
    if found is None:
        raise UnknownNameError("setting", name, settings(), "see: moebench list settings")
    return found


def few_shot_count(asked: str, name: str, setting_name: str | None) -> int:
    """Return the number of few-shot examples before each of a workload's prompts.

    Args:
        asked: a number, or ``paper`` for the count in the setting's paper.

    Raises UsageError: ``asked`` is invalid, or is ``paper`` without a setting.
    """
    if asked == "paper":
        if setting_name is None:
            raise UsageError("--few-shot paper: give --setting NAME, whose paper is meant")
        return few_shot_of(workload(name), setting(setting_name).paper)
    if not (asked.isascii() and asked.isdecimal() and len(asked) < 8):
        raise UsageError(f"--few-shot {asked}: allowed: a number from 0 on, or paper")
    return int(asked)
