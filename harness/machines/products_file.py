"""Rates of an expert's products, and the file of them beside the profile of a calibration."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from moebench.harness.machines.rates import Rate
from moebench.substrate.errors import ProfileError
from moebench.substrate.files import read_text, write_text

#: Hidden size and width of the expert that is multiplied.
EXPERT = (2048, 1024)


class Products(NamedTuple):
    """Rates of products, and what they were measured with.

    Attributes:
        kernels: by format, the library that multiplied.
        bits: by format, bits per weight.
        rates: bytes of weights over time in GB/s, by format, rows and threads.
    """

    kernels: dict[str, str]
    bits: dict[str, float]
    rates: dict[str, dict[int, dict[int, Rate]]]

    def best(self, rows: int, formats: Sequence[str] = ()) -> tuple[str, int, Rate]:
        """Return format, threads and rate in GB/s of the most bytes per second."""
        found = [
            (form, threads, rate)
            for form, by_rows in self.rates.items()
            if not formats or form in formats
            for threads, rate in by_rows.get(rows, {}).items()
        ]
        return max(found, key=lambda one: one[2].value)


def products_file(profile: Path) -> Path:
    """Return the file of the products that were measured with a profile."""
    return profile.with_suffix(".products.json")


def as_document(products: Products) -> dict[str, Any]:
    """Return the products as a JSON document."""
    return {
        "what": "bytes of an expert's weights over the time of its product in GB/s: median, and "
        "ends of the middle half; by format, rows and threads",
        "expert": {"hidden_size": EXPERT[0], "width": EXPERT[1]},
        "formats": {
            form: {
                "kernels": products.kernels[form],
                "bits": products.bits[form],
                "gb_s": {
                    str(rows): {
                        str(threads): [float(f"{number:.4g}") for number in rate]
                        for threads, rate in by_threads.items()
                    }
                    for rows, by_threads in by_rows.items()
                },
            }
            for form, by_rows in products.rates.items()
        },
    }


def write_products(products: Products, profile: Path) -> None:
    """Write the products next to a profile."""
    text = json.dumps(as_document(products), indent=1)
    write_text(products_file(profile), text + "\n")


def read_products(profile: Path) -> Products | None:
    """Read the products that were measured with a profile; None if there is no such file.

    Raises ProfileError: the file is not what `write_products` writes.
    """
    path = products_file(profile)
    if not path.is_file():
        return None
    try:
        formats = json.loads(read_text(path, ProfileError, ""))["formats"]
        return Products(
            {form: str(said["kernels"]) for form, said in formats.items()},
            {form: float(said["bits"]) for form, said in formats.items()},
            {
                form: {
                    int(rows): {int(n): _rate(numbers) for n, numbers in by_threads.items()}
                    for rows, by_threads in said["gb_s"].items()
                }
                for form, said in formats.items()
            },
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProfileError(
            f"{path}: not a file of measured products; remove it, or type moebench calibrate "
            "--quick again"
        ) from error


def _rate(numbers: Any) -> Rate:
    value, low, high = (float(number) for number in numbers)
    if not 0 < low <= value <= high < 1e6:
        raise ValueError("not a rate")
    return Rate(value, low, high)
