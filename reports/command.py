"""The command that repeats a run, from its spec."""

import shlex
from collections.abc import Mapping
from typing import Any

#: A spec's fields that are options of another name.
_NAMES = {
    "device_memory_gib": "device-memory",
    "emulated_link_gb_s": "emulated-link",
}
#: Values that are written with a unit.
_UNITS = {"device_memory_gib": "{:g}GiB", "emulated_link_gb_s": "{:g}GB/s"}

#: What need not be typed.
_DEFAULTS = {
    "variant": "published",
    "page_cache": "bypass",
    "device": "cpu",
    "seed": 0,
    "scoring": "fixed-length",
    "few_shot": 0,
    "routing": "model",
    "batch": 1,
}
#: What is no option, or follows from others.
_NOT_TYPED = {"options", "overrides"}


def command_of(spec: Mapping[str, Any]) -> str:
    """``moebench run`` with every option that was resolved.

    Args:
        spec: what was asked for; a run's own spec says what came of it, where the number of slots
            stands for the cache ratio.
    """
    given = {key: value for key, value in spec.items() if key not in _NOT_TYPED}
    overrides = dict(spec.get("overrides") or {})
    if "options" in spec:  # a run's own
        if given.get("slots"):
            given["cache_ratio"] = None
        given["alpha"] = None if "alpha" in overrides else given.get("alpha")
    if given.get("trace"):  # names the rest of what was read
        given["workload"] = None
    words = ["moebench", "run"]
    for key, value in given.items():
        if value is None or value is False or _DEFAULTS.get(key) == value:
            continue
        words.append(f"--{_NAMES.get(key, key.replace('_', '-'))}")
        if value is not True:
            words.append(_UNITS.get(key, "{}").format(value))
    for key, value in overrides.items():
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)
