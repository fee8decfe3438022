"""A composition as a Python file of one class, which ``--system found:Name`` runs."""

import dataclasses
import keyword
import re
from collections.abc import Iterable, Mapping
from typing import Any

from moebench.harness.search.composition import BASE, Sets
from moebench.substrate.engine.policies import Policy
from moebench.substrate.errors import UsageError
from moebench.systems.options import build
from moebench.systems.registry import system_class

#: The base class that annotates each decision.
_KINDS = {
    "place": "Placement", "route": "Routing", "assign": "Assignment", "prefetch": "Prefetching",
    "admit": "Admission", "evict": "Eviction",
}  # fmt: skip


def check_name(name: str) -> None:
    """Refuse a name that no Python class can have.

    Raises UsageError: says what is allowed.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or keyword.iskeyword(name):
        raise UsageError(f"--name {name}: allowed: a name of a Python class, such as Found")


def source(name: str, sets: Sets, provenance: str) -> str:
    """Return the file of a composition.

    Args:
        name: of the class.
        sets: decisions and options that replace the base's.
        provenance: paragraphs for the class's docstring: where it is from, and what it reached.
    """
    check_name(name)
    system, base = build(BASE, sets), system_class(BASE)
    imports: dict[str, set[str]] = {
        "dataclasses": {"dataclass", "field"}, base.__module__: {base.__name__},
    }  # fmt: skip
    fields = []
    for decision, policy in system.policies.items():
        if decision not in sets:
            continue
        kind = _KINDS[decision]
        imports.setdefault("moebench.substrate.engine.policies", set()).add(kind)
        imports.setdefault(type(policy).__module__, set()).add(type(policy).__qualname__)
        line = f"    {decision}: {kind} = field(default_factory={_factory(policy)})"
        if len(line) > _WIDTH:
            inner = f"        default_factory={_factory(policy)}"
            line = f"    {decision}: {kind} = field(\n{inner}\n    )"
        fields.append(line)
    for option, kind in (("scope", "Scope"), ("alpha", "float"), *_RUNTIME_KINDS.items()):
        if option in sets:
            fields.append(f"    {option}: {kind} = {getattr(system, option)!r}")
            if option == "scope":
                imports.setdefault("moebench.substrate.memory.cache", set()).add("Scope")
            if kind == "HostKernels":
                imports.setdefault("moebench.substrate.choices", set()).add(kind)
            if kind.startswith("Literal"):
                imports.setdefault("typing", set()).add("Literal")
    lines = [_import(module, names) for module, names in sorted(imports.items())
             if module in _STANDARD]  # fmt: skip
    lines += ["", *(_import(module, names) for module, names in sorted(imports.items())
                    if module not in _STANDARD)]  # fmt: skip
    summary, *more = [text.strip() for text in provenance.split("\n\n")]
    body = [f'    """{summary}', *(f"\n{_indented(text)}" for text in more)]
    body += ['    """' if more else '"""', "", *fields]
    if not more:
        body = [f'    """{summary}"""', "", *fields]
    return (
        '"""A composition that `moebench search` found."""\n\n' + "\n".join(lines)
        + f"\n\n\n@dataclass(kw_only=True)\nclass {name}({base.__name__}):\n"
        + "\n".join(body) + "\n"
    )  # fmt: skip


#: The annotations of options of the system itself, but for ``scope``.
_RUNTIME_KINDS = {
    "host_together": "bool", "host_kernels": "HostKernels", "pinned_copies": "bool | None",
    "in_flight": 'Literal["wait", "host"]',
}  # fmt: skip


#: Modules of Python's own library that a file can import.
_STANDARD = ("dataclasses", "typing")

#: The longest line that is not wrapped.
_WIDTH = 100


def _import(module: str, names: Iterable[str]) -> str:
    line = f"from {module} import {', '.join(sorted(names))}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {n}," for n in sorted(names)), ")"])


def _indented(text: str) -> str:
    return "\n".join(f"    {line.strip()}" for line in text.splitlines())


def _factory(policy: Policy) -> str:
    """Return what makes the policy: its class, or a function with its changed options."""
    changed = _changed(policy)
    name = type(policy).__qualname__
    if not changed:
        return name
    return f"lambda: {name}({', '.join(f'{key}={value!r}' for key, value in changed.items())})"


def _changed(policy: Policy) -> Mapping[str, Any]:
    """Return the options that differ from the class's defaults."""
    found = {}
    for one in dataclasses.fields(policy):  # type: ignore[arg-type]
        value = getattr(policy, one.name)
        default = one.default
        if one.default_factory is not dataclasses.MISSING:
            default = one.default_factory()
        if one.init and value != default:
            found[one.name] = value
    return found
