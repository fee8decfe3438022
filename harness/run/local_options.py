"""What can be asked of this computer, and of no other machine."""

from typing import Any

from moebench.harness.run.native_options import NATIVE_SOFTWARE
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.profile import DEFAULT_SOFTWARE, check_software
from moebench.systems.registry import NATIVE


def check_software_here(chosen: dict[str, Any], given: dict[str, Any]) -> None:
    """A kind that there is; on this computer, which is measured, our own engine's."""
    if chosen.get("machine") == "local":
        if given.get("software") is not None:
            raise UsageError(
                f"--software {given['software']} and --machine local: this computer is measured, "
                "with our own engine or a package itself"
            )
        if chosen["system"] in NATIVE:
            chosen["software"] = NATIVE_SOFTWARE
            return
        chosen["software"] = DEFAULT_SOFTWARE
    check_software(chosen.get("software", DEFAULT_SOFTWARE))


def check_local(chosen: dict[str, Any]) -> None:
    """Options of this computer, on this computer: a link above host memory, or a disk."""
    link, cache = chosen.get("emulated_link_gb_s"), chosen.get("page_cache")
    device = chosen.get("device")
    options = {"--emulated-link": link, "--page-cache": cache, "--device": device}
    for option, given in options.items():
        if given is not None and chosen.get("machine") != "local":
            raise UsageError(f"{option} {given}: this computer is meant; add --machine local")
        if device == "cuda" and given not in (None, "cuda"):
            raise UsageError(
                f"{option} and --device cuda: a card's experts are in host memory, behind its own "
                "link; give one"
            )
    if link is not None and cache is not None:
        raise UsageError(
            f"--page-cache {cache} and --emulated-link: experts are in memory then; give one"
        )
