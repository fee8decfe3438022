"""Systems of other installed packages: the entry-point group ``moebench.systems``.

    [project.entry-points."moebench.systems"]
    mine = "my_package.systems:Mine"

Names are read from the packages' metadata; a package is imported when its system is first used.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Collection
from functools import lru_cache
from importlib.metadata import Distribution, distributions
from typing import NamedTuple

GROUP = "moebench.systems"

#: Allowed names: not ``module:Class`` nor ``all``, which have another meaning.
NAME = re.compile(r"(?!all$)[a-z0-9][a-z0-9._-]*")


class Plugin(NamedTuple):
    """A system ``module:Class`` of another package, and its name, version and one-line summary."""

    value: str
    package: str
    summary: str


class Plugins(NamedTuple):
    """Systems that installed packages offer, by name: usable ones, and refused ones' reasons.

    The reason for a package with broken metadata is listed by folder.
    """

    usable: dict[str, Plugin]
    refused: dict[str, str]


def plugins(own: Collection[str]) -> Plugins:
    """Return the systems of all installed packages, which may not use moebench's ``own`` names."""
    usable: dict[str, Plugin] = {}
    offered, unreadable = _offered(tuple(sys.path))
    refused = dict(unreadable)
    for name, offers in offered.items():
        packages = " and ".join(sorted(offer.package for offer in offers))
        if name in own:
            refused[name] = (
                f"{packages} offers a system {name!r}, but moebench has one of this name, which is "
                f"what runs; rename the entry point in the group {GROUP}"
            )
        elif len(offers) > 1:
            refused[name] = f"{packages} both offer a system {name!r}; uninstall one of them"
        elif not NAME.fullmatch(name):
            refused[name] = (
                f"{packages} offers a system {name!r}; allowed: a-z, 0-9 and . _ -, and not 'all'"
            )
        else:
            usable[name] = offers[0]
    return Plugins(usable, refused)


@lru_cache(maxsize=1)
def _offered(path: tuple[str, ...]) -> tuple[dict[str, list[Plugin]], dict[str, str]]:
    """Return offers by system name, and by folder why a package cannot be read.

    Of a package that is found twice, only the first counts.
    """
    found: dict[str, list[Plugin]] = defaultdict(list)
    unreadable: dict[str, str] = {}
    seen: set[str] = set()
    for package in distributions(path=list(path)):
        if not _concerns_us(package):
            continue
        try:
            name, offers = _offers(package)
        except Exception as error:  # broken metadata can raise anything in the library's readers
            folder = str(package.locate_file(""))
            unreadable[folder] = f"{folder}: a package's systems cannot be read ({error!r})"
            continue
        if name not in seen:
            seen.add(name)
            for system, plugin in offers:
                found[system].append(plugin)
    return dict(found), unreadable


def _concerns_us(package: Distribution) -> bool:
    """Return whether a package offers systems, without parsing its other metadata."""
    try:
        return GROUP in (package.read_text("entry_points.txt") or "")
    except (OSError, UnicodeDecodeError):
        return False


def _offers(package: Distribution) -> tuple[str, list[tuple[str, Plugin]]]:
    """Return the package's normalised name, and its systems by name."""
    about = package.metadata
    package_name = re.sub(r"[-_.]+", "-", about["Name"]).lower()
    said = f"{package_name} {about['Version']}"
    summary = ("Summary" in about and about["Summary"]) or ""
    entries = package.entry_points.select(group=GROUP)
    return package_name, [(e.name, Plugin(e.value, said, summary)) for e in entries]
