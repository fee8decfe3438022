"""``moebench calibrate --quick``: detects this computer, measures it, and writes its profile."""

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moebench.harness import console

if TYPE_CHECKING:
    from moebench.harness.advise.question import Hardware
    from moebench.substrate.machines.accelerator import Accelerator


def calibrate_quick(out: Path, store: Path, json: bool) -> None:
    """Measure this computer, write its profile and its products' rates, and print the numbers.

    Raises UsageError: the computer's card is not among the parts.
    """
    from moebench.harness.advise.detect import this_computer
    from moebench.harness.advise.parts_text import parts_text
    from moebench.harness.machines.products_file import as_document, products_file, write_products
    from moebench.harness.machines.profile import write_profile
    from moebench.harness.machines.quick import busy, measure
    from moebench.harness.machines.quick_profile import measured_fields, profile_of_parts
    from moebench.harness.machines.survey import survey
    from moebench.substrate.machines.compose import composed
    from moebench.substrate.machines.profile import HardwareProfile

    hardware = this_computer()
    text, remarks = parts_text(hardware)
    parts = composed(text)
    console.say(f"parts: {text}")
    for remark in remarks:
        console.say(f"note: {remark}")
    card = _card(hardware)
    if hardware.gpu and card is None and not parts.get("pool"):
        remarks = (*remarks, "torch uses no card, so card and link keep the numbers of their parts")
        console.say(f"note: {remarks[-1]}")
    found = measure(store, card, console.say)
    disturbed = busy(found.load)
    if disturbed:
        remarks = (*remarks, disturbed)
    cpu = survey().names.get("host", hardware.cpu)
    profile = profile_of_parts(parts, found, cpu, hardware.cores, hardware.ram_gib, remarks)
    HardwareProfile.from_mapping(profile, str(out))
    write_profile(profile, out)
    write_products(found.products, out)
    if json:
        both = {"profile": profile, "products": as_document(found.products), "parts": text}
        print(json_text.dumps(both, sort_keys=True))
        return
    console.table("this computer", ["field", "value", "middle half", "unit"], [
        [field, f"{number['value']:g}", _span(number), number["unit"]]
        for field, number in measured_fields(profile)
    ])  # fmt: skip
    if disturbed:
        console.say(f"note: {disturbed}")
    console.say(f"profile in {out}, products by format and threads in {products_file(out)}")
    console.say(f"use it with --machine {out}")


def _card(hardware: "Hardware") -> "Accelerator | None":
    """Return the GPU that torch finds; None if no card was detected, or torch uses none."""
    from moebench.substrate.errors import UsageError
    from moebench.substrate.machines.accelerator import Cuda

    if not hardware.gpu:
        return None
    try:
        return Cuda()
    except UsageError:
        return None


def _span(number: dict[str, Any]) -> str:
    low_high = number.get("range")
    return "" if low_high is None else f"{low_high[0]:g} to {low_high[1]:g}"
