"""Descriptions of every system, read from its class and its module's docstring.

`docs/systems.md` and ``moebench list systems --long`` show the same descriptions.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moebench.substrate.engine.policies import Placement
from moebench.substrate.engine.system import System
from moebench.substrate.models.catalogue import model_names, model_shape
from moebench.systems.native.base import NativeSystem
from moebench.systems.options import build, build_native, describe, options_of
from moebench.systems.registry import DECISIONS, NATIVE, SYSTEMS, Variant, variants_of

#: First words of the lines in docstrings above lists of differences from a system's source.
HEADINGS = ("Deviations", "Not modelled")

#: Models for which model-dependent limits are shown: one fine-grained, one with few experts.
EXAMPLES = ("deepseek-moe-16b", "mixtral-8x7b")
#: The example model and the number of slots for which a run's notes are shown.
NOTED = ("mixtral-8x7b", 64)

#: The command that writes `docs/systems.md`.
COMMAND = "moebench list systems --long > docs/systems.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One variant of one system, as `docs/systems.md` describes it.

    Attributes:
        what: the first sentence of its docstring.
        paper: the publication; "" for a plain baseline or bound.
        decisions: names of the five policies, as for ``--set``.
        options: options of the system that differ from `System`'s defaults, and its own ones.
        calibration: number of calibration texts by decision.
        slots, common, host, disk: what it keeps in each tier, and what the host computes.
        max_batch: most sequences at once; None is any number.
        notes: the notes of its runs for `NOTED`.
        not_for: models that it does not support, by reason.
        deviations: lists of differences from its source, by heading.
    """

    system: str
    variant: Variant
    what: str
    paper: str
    module: str
    decisions: dict[str, str]
    options: dict[str, str]
    lossless: str
    calibration: dict[str, int]
    routing: str
    slots: str
    common: str
    host: str
    disk: str
    max_batch: int | None
    notes: list[str]
    not_for: dict[str, list[str]]
    deviations: dict[str, list[str]]

    @property
    def rows(self) -> dict[str, str]:
        """Rows of the system's table: label and text."""
        learns = ", ".join(f"{d} from {n} texts" for d, n in self.calibration.items())
        return {
            **self.decisions,
            "other options": _spelled(self.options),
            "lossless": self.lossless,
            "calibration": learns or "none",
            "routing": self.routing,
            "expert slots": self.slots,
            "non-expert weights": self.common,
            "host": self.host,
            "disk": self.disk,
            "sequences at once": "any" if self.max_batch is None else str(self.max_batch),
        }

    @property
    def lists(self) -> dict[str, list[str]]:
        """Bullet lists below the system's table, by heading."""
        model, slots = NOTED
        notes = {f"Notes of its runs ({model}, {slots} slots):": self.notes}
        found = notes | _missing(self.not_for) | self.deviations
        return {heading: bullets for heading, bullets in found.items() if bullets}


def described(names: Iterable[str] = tuple(SYSTEMS)) -> Iterator[Description]:
    """Yield the descriptions of these systems in the order of names, each with its variants."""
    for name in sorted(names):
        yield from (description(name, variant) for variant in variants_of(name))


def description(name: str, variant: Variant = "published") -> Description:
    """Return the description of one variant of one system."""
    system = build(name, variant=variant)
    cls, policies = type(system), system.policies
    return Description(
        system=name, variant=variant, what=_what(cls), paper=cls.paper, module=cls.__module__,
        decisions={decision: describe(system)[decision] for decision in DECISIONS},
        options=_options(system), lossless=_lossless(system),
        calibration={d: p.calibration_texts for d, p in policies.items() if p.calibrates},
        routing="replayed only" if system.clairvoyant else "computed or replayed",
        slots=_slots(system), common=_common(system), host=_host(system), disk=_disk(system),
        max_batch=cls.max_batch, notes=[*system.remarks(model_shape(NOTED[0]), NOTED[1])],
        not_for=_not_for(system), deviations=_deviations(_docstrings(cls)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeDescription:
    """A third-party package that runs models by itself; fields as in `Description`."""

    system: str
    what: str
    paper: str
    module: str
    options: dict[str, str]
    packages: list[str]
    max_batch: int | None
    not_for: dict[str, list[str]]
    deviations: dict[str, list[str]]


def natives(names: Iterable[str] = tuple(NATIVE)) -> Iterator[NativeDescription]:
    """Yield the descriptions of these third-party packages in the order of names."""
    for name in sorted(names):
        system = build_native(name)
        cls = type(system)
        texts = _docstrings(cls)
        yield NativeDescription(
            system=name, what=_first_sentence(texts[1]), paper=cls.paper,
            module=cls.__module__, options=describe(system),
            packages=sorted(cls.requires.values()),
            max_batch=cls.max_batch, not_for=_not_for(system), deviations=_deviations(texts),
        )  # fmt: skip


# ----------------------------------------------------------------------------- from the class


def _options(system: System) -> dict[str, str]:
    """Return options that differ from `System`'s defaults or that `System` does not have."""
    defaults: Mapping[str, Any] = {f.name: f.default for f in System.__dataclass_fields__.values()}
    return {
        option: str(getattr(system, option))
        for option in options_of(type(system))
        if option not in defaults or getattr(system, option) != defaults[option]
    }


def _lossless(system: System) -> str:
    if system.reads_unfinished:
        return "no: it computes on copies that are under way"
    if system.lossless:
        return "yes"
    exact = system.route.lossless_at(0) and system.assign.lossless
    return "no; with alpha=0" if system.has_alpha and exact else "no"


def _slots(system: System) -> str:
    if system.all_resident:
        return "every expert"
    pools = {"global": "one pool for all layers", "layer": "a pool for each layer"}[system.scope]
    if type(system.place).slots is not Placement.slots:
        pools = "a pool for each layer, sized by `place`"
    most = {name: system.most_slots(model_shape(name)) for name in EXAMPLES}
    limits = [f"{n} for {name}" for name, n in most.items() if n is not None]
    return pools + (f"; at most {', '.join(limits)}" if limits else "")


def _common(system: System) -> str:
    if type(system.place).homes is Placement.homes:
        return "on the device"
    return "where `place` puts each layer's: device, host, or streamed"


def _host(system: System) -> str:
    if system.all_resident:
        return "-"
    return "keeps experts and computes some" if system.assign.uses_host else "keeps experts"


def _disk(system: System) -> str:
    if system.all_resident:
        return "-"
    kept = "experts that do not fit into host memory"
    if system.host_experts is not None:
        kept = f"all but {system.host_experts} experts"
    return kept if system.parallel_reads else f"{kept}; one read at a time"


def _not_for(system: System | NativeSystem) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name in model_names():
        reason = system.why_not(model_shape(name), 1)
        if reason is not None:
            found[reason].append(name)
    return dict(found)


# ----------------------------------------------------------------------------- from docstrings


def _docstrings(cls: type) -> list[str]:
    """Return the class's own docstring and its module's, in this order."""
    own = cls.__doc__ or ""
    if own.startswith(f"{cls.__name__}("):  # `dataclass` wrote the signature
        own = ""
    return [inspect.cleandoc(text) for text in (own, sys.modules[cls.__module__].__doc__ or "")]


def _what(cls: type[System]) -> str:
    """Return the module's first sentence, or the class's if the module has several systems."""
    own, module = _docstrings(cls)
    return _first_sentence(module if module and not (own and _shares_module(cls)) else own)


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph, maxsplit=1)[0]


def _shares_module(cls: type[System]) -> bool:
    """Return whether the class's module defines another system."""
    source = inspect.getsource(sys.modules[cls.__module__])
    classes = [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    found = (getattr(sys.modules[cls.__module__], name) for name in classes)
    return any(issubclass(other, System) and other is not cls for other in found)


def _deviations(docstrings: Sequence[str]) -> dict[str, list[str]]:
    """Return the lists of deviations, by heading, of the first docstring that has any."""
    for text in docstrings:
        lines = text.splitlines()
        starts = [i for i, line in enumerate(lines) if line.startswith(HEADINGS)]
        if starts:
            return dict(_bullets(lines[start:]) for start in starts)
    return {}


def _bullets(lines: Sequence[str]) -> tuple[str, list[str]]:
    """Return a heading, and the list below it up to the next line outside the list."""
    heading: list[str] = []
    bullets: list[str] = []
    for line in lines:
        if line.startswith("- "):
            bullets.append(line[2:])
        elif bullets and line.startswith("  "):
            bullets[-1] += f" {line.strip()}"
        elif line and bullets:
            break
        elif line:
            heading.append(line)
    return " ".join(heading), bullets


# ----------------------------------------------------------------------------- as Markdown


def document(
    descriptions: Iterable[Description], packages: Iterable[NativeDescription] = ()
) -> str:
    """Return the text of `docs/systems.md`: an overview, then each system and package."""
    by_name: dict[str, list[Description]] = defaultdict(list)
    for found in descriptions:
        by_name[found.system].append(found)
    overview = [
        [
            f"[{d.system}](#{d.system})", d.variant, d.lossless, ", ".join(d.calibration) or "-",
            "yes" if "computes" in d.host else "-", d.rows["sequences at once"], d.paper or "-",
        ]
        for variants in by_name.values() for d in variants
    ]  # fmt: skip
    headers = ["system", "variant", "lossless", "learns", "host computes", "at once", "paper"]
    parts = [_INTRODUCTION, markdown_table(headers, overview)]
    parts += [_section(variants) for variants in by_name.values()]
    parts += [_PACKAGES, *map(_package, packages)] if packages else []
    return "\n".join(parts)


_INTRODUCTION = f"""\
# Systems

A system is one published method of running MoE models whose experts do not all fit on the device.
This page is generated from the systems' classes and modules: `{COMMAND}`.

`published` is the algorithm of a system's paper, or of an engine's newest version; `shipped`
(`--variant shipped`) is the behaviour of the authors' code, `earlier` an engine's earlier version.
Each of the six decisions is a policy with a name: `--set evict=lru` replaces
one ([all policies and their options](policies.md)).  *Lossless* systems generate the
same tokens as the model with every expert resident.  Systems that *learn* use other texts before a
run; `--calibrate-texts` sets their number.  In every system, experts that do not fit into host
memory are on the disk.  A system without a paper is a plain baseline or bound.
"""


_PACKAGES = """\
# Native packages

Third-party packages run the same checkpoint by themselves, on this computer, each in a separate
process: `moebench run --system native-llamacpp --setting S3 --machine local`.  They do not use
moebench's six decisions.  TTFT and TPOT are measured on their streamed tokens, with the badge
`measured`; figures that they do not report (cache ratios, lanes, a bound) are left out.
`pip install 'moebench[native]'` installs them; `all` does not include them.
"""


def _package(found: NativeDescription) -> str:
    """Return the Markdown section of a third-party package: its options and deviations."""
    rows = [[key, value] for key, value in found.options.items()]
    rows.append(["sequences at once", "any" if found.max_batch is None else str(found.max_batch)])
    rows.append(["packages", ", ".join(found.packages)])
    rows.append(["module", f"`{found.module}`"])
    lines = [f"## {found.system}", "", f"{found.what}  {found.paper}.", ""]
    lines.append(markdown_table(["option", "default"], rows))
    for heading, bullets in (_missing(found.not_for) | found.deviations).items():
        lines += [heading, "", *map(_wrapped, bullets), ""]
    return "\n".join(lines)


def _missing(not_for: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return a list of unsupported models with the reasons, under its heading."""
    missing = [f"{', '.join(models)}: {why}" for why, models in not_for.items()]
    return {"It does not exist for:": missing} if missing else {}


def _section(variants: Sequence[Description]) -> str:
    """Return the Markdown section of a system: its variants side by side, and their deviations."""
    first = variants[0]
    cited = f"  {first.paper}." if first.paper else ""
    lines = [f"## {first.system}", "", f"{first.what}{cited}", ""]
    rows = [[key, *(d.rows[key] for d in variants)] for key in first.rows]
    rows.append(["module", *(f"`{d.module}`" for d in variants)])
    lines.append(markdown_table(["", *(d.variant for d in variants)], rows))
    for d in variants:
        if d is not first:
            lines += [f"`--variant {d.variant}`: {d.what}", ""]
        for heading, bullets in d.lists.items():
            lines += [heading, "", *map(_wrapped, bullets), ""]
    return "\n".join(lines)


def _wrapped(bullet: str) -> str:
    return textwrap.fill(
        bullet, 100, initial_indent="- ", subsequent_indent="  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with padded columns."""
    cells = [[text.replace("|", "\\|") for text in row] for row in (headers, *rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(headers))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join([*lines, ""])


def _spelled(options: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in options.items()) or "-"
