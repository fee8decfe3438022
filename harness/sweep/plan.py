"""Expands a sweep's file or flags into cells: product, zip and exclude over the fields of a run.

    common:  {prompts: 32, new_tokens: 64}     # equal in every cell
    product:                                   # every combination
      system: [moe-ondemand, {system: smoe, set: {evict: lru}}]
      setting: [S1, S3]
      alpha: [0.2, 0.3]                        # ignored for a system that has no α
    zip: {batch: [1, 3], prompts: [32, 33]}    # combined row by row
    exclude:                                   # omits cells that have all of these values
      - {system: smoe, setting: S1, alpha: 0.2}
    optional:                                  # omits such cells if they are not possible
      - {routing: real}
    record: moebench trace record ...          # command to suggest if a trace is missing

A key is a field of `RunSpec` (`set` for its overrides) or `alpha`.  An entry that is a mapping sets
several fields at once.  `system: all` means every system of the catalogue.  `trace` and `weights`
may contain fields of their cell: `traces/{model}__{workload}`.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import TypeAdapter, ValidationError

from moebench.harness.run.rules import resolve
from moebench.results.spec import OPTIONS, RunSpec
from moebench.substrate.errors import InputError, NotApplicableError, UnknownNameError, UsageError
from moebench.substrate.files import brief, read_yaml
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import model_shape
from moebench.systems.options import routing_of
from moebench.systems.registry import NATIVE, SYSTEMS
from moebench.workloads.catalogue import workload

#: Folder of the sweeps that ship; a file's name is the sweep's name.
CATALOGUE = Path(__file__).parents[1] / "catalogue" / "sweeps"

PARTS = ("common", "product", "zip", "exclude", "optional", "record")

#: Keys that a cell may set, with their types.
FIELDS: dict[str, Any] = {
    "set" if name == "overrides" else name: option.type | str | None
    if option.word
    else option.type | None
    for name, option in OPTIONS.items()
}

#: Other keys of fields, by key.
KEYS = {option.typed: name for name, option in OPTIONS.items() if option.former}

Given = dict[str, Any]

#: Prints one line about omitted cells.
Say = Callable[[str], None]
Progress = Callable[[int, int], None]


def cells_from_file(
    path: Path, data_dir: Path | None, say: Say = lambda line: None,
    progress: Progress = lambda done, total: None,
) -> list[RunSpec]:  # fmt: skip
    """Return the cells of a sweep's file, or of a sweep that ships.

    Args:
        say: called once for each reason why cells are omitted.

    Raises InputError, UsageError, UnknownNameError: the file is missing or has an invalid entry.
    """
    file = path
    if not path.exists() and len(path.parts) == 1:
        file = CATALOGUE / f"{path.name.removesuffix('.yaml')}.yaml"
    if not file.is_file():
        known = ", ".join(sorted(p.stem for p in CATALOGUE.glob("*.yaml")))
        raise InputError(f"{path}: no such file; sweeps that ship: {known}")
    plan = _read(file)
    try:
        return expand(plan, data_dir, say, progress)
    except (UsageError, InputError) as error:
        raise UsageError(f"{path}: {error}") from error


def _read(file: Path) -> Given:
    return _mapping(read_yaml(file), str(file))


def expand(
    plan: Mapping[str, Any], data_dir: Path | None, say: Say = lambda line: None,
    progress: Progress = lambda done, total: None,
) -> list[RunSpec]:  # fmt: skip
    """Return the distinct cells of a sweep's plan, in the order of its axes.

    Args:
        progress: called with the number of expanded combinations and their total.

    Raises UsageError, UnknownNameError: a key, name or value is invalid.
    """
    for key in plan:
        if key not in PARTS:
            raise UnknownNameError("sweep key", str(key), PARTS)
    if not isinstance(plan.get("record", ""), str):
        raise UsageError(f"record is {brief(plan['record'])}; allowed: a command, as text")
    _check_once(plan)
    common = fields(plan.get("common") or {}, "common")
    axes = [*_product(plan.get("product") or {}), *_zips(plan.get("zip") or [])]
    excluded, optional = (
        [fields(row, part) for row in _list(plan.get(part) or [])]
        for part in ("exclude", "optional")
    )
    left_out: dict[str, None] = {}
    specs: dict[tuple[str, int], RunSpec] = {}
    cells = _Cells(data_dir, plan.get("record"), common)
    total = math.prod(map(len, axes))
    for number, rows in enumerate(product(*axes), 1):
        progress(number, total)
        if excluded and any(_matches(row, _merged([common, *rows])) for row in excluded):
            continue
        try:
            spec, but_seed = cells.of(rows)
        except NotApplicableError as error:
            left_out[f"n/a: {error}"] = None
            continue
        except (UsageError, InputError) as error:
            given = _merged([common, *rows])
            if not any(_matches(row, given) for row in optional):
                raise
            left_out[str(error)] = None
            continue
        specs.setdefault((but_seed, spec.seed), spec)
    for reason in left_out:
        say(f"left out: {reason}")
    if not specs:
        raise UsageError("the sweep has no cell: everything is excluded, or a list is empty")
    return list(specs.values())


# ----------------------------------------------------------------------------- axes


def _check_once(plan: Mapping[str, Any]) -> None:
    """Refuse a key that is on two axes, since one axis would override the other.

    Options of ``set`` are merged.  A mapping on an axis may change any field, and axes override
    ``common``.
    """
    given = [("product", key) for key in _mapping(plan.get("product") or {}, "product")]
    for columns in _list(plan.get("zip") or []):
        given += [("zip", key) for key in _mapping(columns, "zip")]
    first: dict[object, str] = {}
    for part, key in ((part, KEYS.get(str(key), key)) for part, key in given):
        if key in first and key != "set":
            raise UsageError(f"{key} is in {first[key]} and in {part}; allowed: in one of them")
        first.setdefault(key, part)


def _product(part: object) -> Iterator[list[Given]]:
    for key, entries in _mapping(part, "product").items():
        yield list(chain.from_iterable(_entry(key, e, "product") for e in _list(entries)))


def _zips(part: object) -> Iterator[list[Given]]:
    for columns in _list(part):
        named = {key: _list(v) for key, v in _mapping(columns, "zip").items()}
        lengths = {key: len(values) for key, values in named.items()}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{key} {n}" for key, n in lengths.items())
            raise UsageError(f"zip: lists must be equally long; found {said}")
        rows = zip(*named.values(), strict=True)
        yield [
            _merged([row for k, v in zip(named, r, strict=True) for row in _entry(k, v, "zip")])
            for r in rows
        ]


def _entry(key: object, entry: object, where: str) -> list[Given]:
    """Return the fields set by one axis entry: a value, a mapping of fields, or all systems."""
    if key == "system" and entry == "all" and where == "product":
        return [{"system": name} for name in sorted(SYSTEMS)]
    if isinstance(entry, Mapping) and key != "set":
        if not entry:
            raise UsageError(f"{where}: {key} {{}}: expected a value, or the fields that it sets")
        return [fields(entry, f"{where}: {key}")]
    return [fields({key: entry}, where)]


def fields(row: object, where: str) -> Given:
    """Return a mapping's values, each validated against its field's type."""
    given = _mapping(row, where)
    for key, name in KEYS.items():
        if key in given and name in given:
            raise UsageError(f"{where}: {key} and {name} are one field; allowed: one of them")
    return {KEYS.get(str(key), str(key)): _value(key, v, where) for key, v in given.items()}


def _value(key: object, value: object, where: str) -> Any:
    key = KEYS.get(str(key), key)
    if key not in FIELDS:
        raise UnknownNameError(f"field in {where}", str(key), FIELDS)
    if key == "set":
        options = _mapping(value, f"{where}: set")
        return {str(k): _spelled(k, v, f"{where}: set") for k, v in options.items()}
    if isinstance(value, bool) and bool not in (FIELDS[key], *get_args(FIELDS[key])):
        raise UsageError(f"{where}: {key} {value!r}: allowed: no truth value")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{where}: {key} {value!r}: allowed: a finite number")
    try:
        return _adapter(str(key)).validate_python(value)
    except ValidationError as error:
        said = error.errors()[0]["msg"]
        raise UsageError(f"{where}: {key} {brief(value)}: {said}") from error


@lru_cache
def _adapter(key: str) -> TypeAdapter[Any]:
    return TypeAdapter(FIELDS[key])


def _spelled(key: object, value: object, where: str) -> str:
    """Return the value of a system option as text for ``--set``."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return json.dumps(value)
    if not isinstance(value, str | bool | int | float):
        raise UsageError(f"{where}: {key} {brief(value)}: allowed: a value, or a list of them")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{where}: {key} {value!r}: allowed: a finite number")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _mapping(value: object, where: str) -> Given:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: expected `key: value` lines, found {brief(value)}")
    return dict(value)


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


# ----------------------------------------------------------------------------- cells


def _merged(rows: Sequence[Given]) -> Given:
    """Return the union of rows: later rows override earlier ones, and ``set`` is merged."""
    merged: Given = {}
    for row in rows:
        options = {**merged.get("set", {}), **row.get("set", {})}
        merged = {**merged, **row, "set": options}
    return merged


def _matches(row: Given, given: Given) -> bool:
    """Return whether a cell has all of a row's values, including the row's ``set`` options."""
    options = given.get("set", {})
    wanted = dict(row)
    return all(options.get(k) == v for k, v in wanted.pop("set", {}).items()) and all(
        given.get(key) == value for key, value in wanted.items()
    )


class _Cells:
    """Resolves combinations of the axes' rows; those that differ in the seed alone, once.

    No rule of `harness.run.rules` reads a seed: a run may have any or, as a replay, none.
    """

    def __init__(self, data_dir: Path | None, record: object, common: Given) -> None:
        self._data_dir, self._record, self._common = data_dir, record, common
        self._resolved: dict[tuple[int, ...], tuple[RunSpec, str]] = {}

    def of(self, rows: Sequence[Given]) -> tuple[RunSpec, str]:
        """Return a combination's spec, and a text of all of its fields but the seed.

        Raises MoeBenchError: there is no such run.
        """
        others = tuple(id(row) for row in rows if "seed" not in row)
        seeds = [row for row in rows if "seed" in row]
        alone = len(seeds) == 1 and len(seeds[0]) == 1 and _is_seed(seeds[0]["seed"])
        if alone and others in self._resolved:
            spec, but_seed = self._resolved[others]
            return spec.model_copy(update=seeds[0]), but_seed
        given = _merged([self._common, *rows])
        spec = _cell(given, self._data_dir, self._record)
        resolved = spec, spec.model_dump_json(exclude={"seed"})
        templates = (given.get("trace"), given.get("weights"))
        if alone and not any("{" in (template or "") for template in templates):
            self._resolved[others] = resolved
        return resolved


_SEED: TypeAdapter[int] = TypeAdapter(Annotated[int, *RunSpec.model_fields["seed"].metadata])


def _is_seed(value: object) -> bool:
    """Return whether a value is in the range of seeds."""
    try:
        _SEED.validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _cell(given: Given, data_dir: Path | None, record: object) -> RunSpec:
    chosen = {key: value for key, value in given.items() if key != "set"}
    if chosen.get("system") is None:
        raise UsageError("no system: give `system: [smoe, ...]` or --systems smoe,...")
    overrides = given.get("set", {})
    variant = chosen.get("variant", "published")
    if not _has_alpha(chosen["system"], overrides.get("route"), variant):
        chosen.pop("alpha", None)
    if "{" in (chosen.get("weights") or ""):
        of = resolve(data_dir, **{**chosen, "weights": None}, overrides=overrides)
        chosen["weights"] = _filled("weights", chosen["weights"], of)
        if not Path(chosen["weights"]).exists():
            raise InputError(f"weights {chosen['weights']}: no such folder")
    if "{" in (chosen.get("trace") or ""):
        of = resolve(data_dir, **{**chosen, "trace": None}, overrides=overrides)
        template = chosen["trace"]
        # A replay reads the model, workload etc. from the trace, so only replay options remain.
        chosen = {key: value for key, value in chosen.items() if "trace" in OPTIONS[key].on}
        chosen["trace"] = _filled("trace", template, of)
        if record is not None and not Path(chosen["trace"]).exists():
            raise InputError(f"trace {chosen['trace']} is missing; record it: {record}")
    spec = resolve(data_dir, **chosen, overrides=overrides)
    _check_names(spec.model, spec.machine)
    if spec.trace is None and spec.routing != "real":  # a replay's workload is only a label
        workload(spec.workload)
    return spec


def _filled(key: str, template: str, spec: RunSpec) -> str:
    """Return a path such as ``traces/{model}-{workload}``, filled with a cell's field values."""
    known = spec.model_dump()
    try:
        return template.format_map(known)
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        raise UsageError(f"{key} {template}: no field {error}; known: {', '.join(known)}") from (
            error
        )


@lru_cache
def _has_alpha(system: str, route: str | None, variant: str) -> bool:
    if system in NATIVE:
        return False
    return routing_of(system, {} if route is None else {"route": route}, variant).has_alpha


@lru_cache
def _check_names(model: str, machine: str) -> None:
    """Refuse an unknown model or machine now, as an error of the file and not of a cell."""
    model_shape(model)
    if machine != "local":
        load_profile(machine)
