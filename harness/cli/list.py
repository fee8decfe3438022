"""``moebench list``: the catalogues, read without importing anything heavy."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from moebench.harness import console
from moebench.harness.cli import usage_errors
from moebench.harness.cli.parameters import JSON, option
from moebench.substrate.errors import UsageError

if TYPE_CHECKING:
    from moebench.systems.description import Description


#: Catalogues that `moebench list` prints.
Listing = StrEnum(
    "Listing",
    "systems settings machines software workloads policies models options metrics commands",
)


def list_(
    what: Listing,
    long: Annotated[
        bool,
        option(
            "Print systems, policies or commands in full, options or metrics as a Markdown table.",
            "--long",
        ),
    ] = False,
    json: JSON = False,
) -> None:
    """List one catalogue: systems, settings, machines, models, run options, commands, ..."""
    if what is Listing.systems:
        console.say_refused()
    if long:
        _describe(what, json)
        return
    rows = _CATALOGUES[what]()
    if json:
        console.print_json(_with_space(rows) if what is Listing.policies else rows)
        return
    headers = list(rows[0])
    console.table(what, headers, [[_text(row[h]) for h in headers] for row in rows])
    if what is Listing.models:
        from moebench.substrate.models.catalogue import ANOTHER

        if console.stdout().is_terminal:  # a pipe gets one table
            console.stdout().print(ANOTHER)


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


def _systems() -> list[dict[str, Any]]:
    from moebench.systems.registry import EARLIER, NATIVE, SHIPPED, SYSTEMS, installed

    none = {"shipped": None, "earlier": None}
    ours = [
        {"system": n, "what": text,
         "shipped": SHIPPED[n][2] if n in SHIPPED else None,
         "earlier": EARLIER[n][2] if n in EARLIER else None}
        for n, (_, _, text) in sorted(SYSTEMS.items())
    ]  # fmt: skip
    ours += [{"system": n, "what": text, **none} for n, (_, _, text) in sorted(NATIVE.items())]
    others = [
        {"system": n, "what": f"of {found.package}: {found.summary}", **none}
        for n, found in sorted(installed().usable.items())
    ]
    return ours + others


def _describe(what: Listing, json: bool) -> None:
    """Print all systems, policies, options, figures or commands, as the documentation does."""
    if what in (Listing.options, Listing.metrics) and not json:
        print(markdown(what))
        return
    if what is Listing.policies and not json:
        from moebench.systems.space_page import document as policies_page

        print(policies_page(), end="")
        return
    if what is Listing.commands and not json:
        from moebench.harness.cli.command_page import document as commands_page

        print(commands_page(usage_errors.program), end="")
        return
    if what is not Listing.systems:
        pages = "systems" if json else "systems, policies, options, metrics, commands"
        raise UsageError(f"list {what} --long{' --json' if json else ''}: allowed: {pages}")
    from dataclasses import asdict

    from moebench.systems.description import described, document, natives
    from moebench.systems.registry import SYSTEMS

    found = [*described(SYSTEMS), *_of_other_packages()]
    packages = [*natives()]
    if json:
        console.print_json([*map(asdict, found), *map(asdict, packages)])
    else:
        print(document(found, packages), end="")


def _options() -> list[dict[str, Any]]:
    """Return one row for each option of a run, from `results.spec`."""
    from moebench.results.spec import EVERY, OPTIONS, flag_of

    return [
        {
            "option": option.flag,
            "field": option.typed if option.former or option.plain is dict else option.name,
            "sweep": flag_of(option.axis) if option.axis else None,
            "default": option.shown or (None if option.default in (None, {}) else option.default),
            "what": f"{option.help} {option.detail}".rstrip(),
            "refused": ", ".join(sorted(EVERY - option.on)) or None,
        }
        for option in OPTIONS.values()
    ]


def _metrics() -> list[dict[str, Any]]:
    """Return every figure of a run, as `results.metrics` describes it."""
    from moebench.results.metrics import METRICS

    return [
        {
            "figure": metric.key, "path": metric.path or "derived", "shown as": metric.header,
            "better": metric.better, "SQL view": "yes" if "view" in metric.where else None,
            "what": metric.says,
        }
        for metric in METRICS
    ]  # fmt: skip


def _commands() -> list[dict[str, Any]]:
    from moebench.harness.cli.command_page import commands

    found = commands(usage_errors.program)
    return [{"command": one.name, "what": one.what} for one in found]


def markdown(what: Listing) -> str:
    """Return a list as the table of `docs/sweeps.md` (options) or `docs/store.md` (metrics)."""
    rows = _CATALOGUES[what]()
    lines = [rows[0].keys(), ["---"] * len(rows[0]), *(map(_text, row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _of_other_packages() -> "list[Description]":
    """Return the systems of installed packages that can be built; report the others."""
    from moebench.systems.description import description
    from moebench.systems.registry import installed

    found = []
    for name in sorted(installed().usable):
        try:
            found.append(description(name))
        except Exception as error:  # whatever another package's class does
            console.say(f"left out: {error}")
    return found


def _settings() -> list[dict[str, Any]]:
    from moebench.harness.settings import settings
    from moebench.substrate.models.catalogue import scale_names

    ready = scale_names()
    return [
        {"setting": found.pop("name"), **found,
         "runs": "yes" if found["model"] in ready else "with --weights DIR"}
        for found in (setting.model_dump() for setting in settings().values())
    ]  # fmt: skip


def _machines() -> list[dict[str, Any]]:
    from moebench.substrate.machines.profile import load_profile, profile_names

    profiles = [load_profile(name) for name in profile_names()]
    rows: list[dict[str, Any]] = [
        {"machine": p.name, "badge": p.badge, "what": p.description} for p in profiles
    ]
    here = {"machine": "local", "badge": "measured", "what": "this computer: CPU, memory and disk"}
    return [*rows, here]


def _software() -> list[dict[str, Any]]:
    from moebench.substrate.machines.profile import load_software, software_names

    return [
        {
            "software": s.name, "layer_us": s.layer.ns / 1e3, "expert_us": s.expert.ns / 1e3,
            "launch_us": s.launch.ns / 1e3, "what": s.description,
        }
        for s in map(load_software, software_names())
    ]  # fmt: skip


def _workloads() -> list[dict[str, Any]]:
    from moebench.workloads.catalogue import workload, workload_names

    found = [workload(name) for name in workload_names()]
    return [
        {
            "workload": w.name, "category": w.category, "metric": w.metric,
            "source": "generated" if w.source == "generated" else "--data-dir", "what": w.title,
        }
        for w in found
    ]  # fmt: skip


def _policies() -> list[dict[str, Any]]:
    import dataclasses

    from moebench.systems.options import options_of
    from moebench.systems.registry import POLICIES, policy_class

    rows = []
    for decision, names in POLICIES.items():
        for name in names:
            found = policy_class(decision, name)
            defaults = {f.name: f.default for f in dataclasses.fields(found)}  # type: ignore[arg-type]
            options = [f"{decision}.{o}={defaults[o]}" for o in options_of(found)]
            what = (found.__doc__ or "").splitlines()[0]
            rows.append(
                {"decision": decision, "name": name, "what": what, "options": " ".join(options)}
            )
    return rows


def _with_space(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the policies with what each needs, and its options one by one."""
    from dataclasses import asdict

    from moebench.systems.space import policies

    return [
        {**row, "needs": one.needs, "space": [asdict(option) for option in one.dimensions]}
        for row, one in zip(rows, policies(), strict=True)
    ]


def _models() -> list[dict[str, Any]]:
    from moebench.substrate.models.catalogue import model_shape, scale_names, shape_names

    rows = []
    for name in shape_names():
        shape = model_shape(name)
        rows.append(
            {
                "model": name, "params_b": f"{shape.total_params / 1e9:.2f}",
                "active_b": f"{shape.active_params / 1e9:.2f}",
                "layers": shape.num_layers, "experts": f"{shape.num_experts}, top-{shape.top_k}",
                "expert_mb_bf16": f"{shape.expert_bytes('bf16') / 1e6:.1f}",
                "common_gb_bf16": f"{shape.common_bytes('bf16') / 1e9:.2f}",
                "scale_model": "ships" if name in scale_names() else None,
            }
        )  # fmt: skip
    return rows


_CATALOGUES = {
    Listing.systems: _systems, Listing.settings: _settings, Listing.machines: _machines,
    Listing.software: _software, Listing.workloads: _workloads, Listing.policies: _policies,
    Listing.models: _models, Listing.options: _options, Listing.metrics: _metrics,
    Listing.commands: _commands,
}  # fmt: skip
