"""What a third-party package can be given, of all that a run can be."""

from collections.abc import Mapping
from typing import Any

from moebench.substrate.errors import UsageError

#: What a package runs on, which is no kind of software that anything is charged for.
NATIVE_SOFTWARE = "native"

#: What a package that runs by itself has no use for.
NOT_NATIVE = (
    "trace", "reconstruct_scores", "routing", "calibrate_from", "calibrate_texts",
    "allow_overcommit", "emulated_link_gb_s", "page_cache", "device", "expert_dtype",
)  # fmt: skip


def check_native(chosen: Mapping[str, Any], alpha: float | None) -> None:
    """Refuse a machine that is simulated, and our own options.

    Raises:
        UsageError: one line that says what is allowed.
    """
    name = chosen["system"]
    if chosen.get("machine") != "local":
        where = chosen.get("machine", "no machine is named")
        raise UsageError(
            f"--system {name}: a package runs for real, on this computer alone ({where}); type: "
            "--machine local"
        )
    given = {**{key: chosen.get(key) for key in NOT_NATIVE}, "alpha": alpha}
    for key, value in given.items():
        if value not in (None, False, "model"):
            option = key.removesuffix("_gb_s").replace("_", "-")
            raise UsageError(f"--{option} and --system {name}: a package runs by itself")
    if chosen.get("scoring") in ("likelihood", "prefill"):
        raise UsageError(
            f"--scoring {chosen['scoring']} and --system {name}: a package is asked for tokens "
            "alone; allowed: fixed-length, generation"
        )
