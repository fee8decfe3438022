"""The evidence for claims: the runs of named experiments, a data folder, recorded routing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from moebench.harness.sweep.execute import jobs_of
from moebench.harness.sweep.plan import expand
from moebench.harness.sweep.planned import Planned
from moebench.harness.sweep.worker import Job
from moebench.results.claims import Measured
from moebench.results.document import Document, dig, system_of
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from moebench.substrate.choices import DEFAULT_SOFTWARE
from moebench.substrate.errors import MoeBenchError
from moebench.substrate.machines.profile import load_profile, machine_with
from moebench.substrate.machines.profile_ranges import number_at, uncertain
from moebench.substrate.traces.recordings import Recording, recordings
from moebench.workloads.catalogue import workload

#: Badges of accuracy from the worst to the best; a figure has the lowest badge of its runs.
BADGES = ("estimate", "datasheet", "calibrated", "measured")


class MissingEvidenceError(MoeBenchError):
    """Raised when a claim cannot be measured: a run failed, or data that it needs are missing."""


#: Errors of a claim's measure that leave it without a figure: evidence is missing, or a ratio has
#: no denominator on these runs.
UNDEFINED = (MoeBenchError, ZeroDivisionError)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A sweep that claims are measured from, in the format of `harness.sweep.plan`.

    Attributes:
        cells: the full sweep.
        quick: keys of ``common``, ``product`` or ``zip`` that replace those of the sweep with
            ``--quick``, and for counter-experiments and ranges; the value None removes a key.
        numbers: fields of the machines' profiles, the uncertain numbers that decide the times of
            this sweep: claims are measured over their ranges.
    """

    name: str
    cells: Mapping[str, Any]
    quick: Mapping[str, Any] = field(default_factory=dict)
    numbers: tuple[str, ...] = ()

    def plan(self, quick: bool, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sweep to run, reduced with ``--quick`` and changed by a counter-experiment.

        Args:
            changes: values of a counter-experiment, which replace those of the sweep in all cells;
                a list is an axis; options of ``set`` are added; None removes a field.
        """
        plan = dict(self.cells)
        for part, values in (self.quick if quick else {}).items():
            if isinstance(values, Mapping):
                merged = {**plan.get(part, {}), **values}
                plan[part] = {k: v for k, v in merged.items() if v is not None}
            else:
                plan[part] = values
        if changes:
            plan = _changed(plan, changes)
        return plan


def _changed(plan: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep whose axes are replaced by changed fields, which override all others."""
    dropped = {key for key, value in changes.items() if value is None}
    # Options of ``set`` are added to those of an axis; a list of options is an axis of its own.
    replaced = {key for key, value in changes.items() if key != "set" or isinstance(value, list)}
    plan = {part: _without(values, dropped) for part, values in plan.items()}
    zips = plan.get("zip", [])
    axes = [plan.get("product", {}), *(zips if isinstance(zips, list) else [zips])]
    kept = [{k: v for k, v in axis.items() if k not in replaced} for axis in axes]
    given = [
        {key: value if isinstance(value, list) else [value]}
        for key, value in changes.items()
        if key not in dropped
    ]
    return {**plan, "product": kept[0], "zip": [*filter(None, kept[1:]), *given]}


def _without(part: Any, fields: set[str]) -> Any:
    """Return a part of a sweep from which some fields are removed at every depth."""
    if isinstance(part, Mapping):
        return {k: _without(v, fields) for k, v in part.items() if k not in fields}
    return [_without(one, fields) for one in part] if isinstance(part, list) else part


class Runs(Sequence[Document]):
    """A sequence of run documents with methods that select runs and read figures from them."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = list(documents)

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, at: Any) -> Any:
        return self._documents[at]

    def of(self, **fields: Any) -> "Runs":
        """Return the runs whose spec has these values.

        ``system`` is compared with the name in reports ("smoe (shipped)"), ``set`` with all
        overrides except α; a tuple holds several allowed values.
        """
        return Runs(run for run in self if all(_has(run, k, v) for k, v in fields.items()))

    def by(self, field_name: str) -> dict[Any, "Runs"]:
        """Group the runs by a field of their specs, in the order of its first occurrences."""
        found: dict[Any, list[Document]] = {}
        for run in self:
            found.setdefault(_field(run, field_name), []).append(run)
        return {value: Runs(ones) for value, ones in found.items()}

    def groups(self, *fields: str) -> "dict[tuple[Any, ...], Runs]":
        """Group the runs by several fields of their specs; the first field varies slowest."""
        if not fields:
            return {(): self}
        outer = self.by(fields[0]).items()
        return {(v, *vs): g for v, runs in outer for vs, g in runs.groups(*fields[1:]).items()}

    def named(self, *systems: str) -> "Runs":
        """Return the runs of some systems, in every variant."""
        return Runs(run for run in self if run["spec"]["system"] in systems)

    def values(self, path: str) -> list[float]:
        """Return a figure of each run, read at a dotted path of its document.

        Raises MissingEvidenceError: there is no run, or one lacks the figure.
        """
        if not len(self):
            raise MissingEvidenceError(f"no run has {path}")
        values = [dig(run, path) for run in self]
        if any(value is None for value in values):
            raise MissingEvidenceError(f"a run lacks {path}")
        return [float(value) for value in values]

    def mean(self, path: str) -> float:
        """Return the mean of a figure over the runs, read at a dotted path of their documents."""
        return fmean(self.values(path))

    @property
    def badge(self) -> str:
        """Lowest badge of the runs."""
        return min((str(run["badge"]).split(",")[0] for run in self), key=BADGES.index)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the runs."""
        return tuple(run["run_id"] for run in self)

    def per_seed(self, figure: "Callable[[Runs], float]", conditions: str = "") -> Measured:
        """Return the mean of a figure over seeds, with its confidence interval."""
        samples = [figure(runs) for runs in self.by("seed").values()]
        return Measured.of(samples, self.badge, conditions)


def _field(run: Document, name: str) -> Any:
    spec = run["spec"]
    if name == "system":
        return system_of(spec)
    if name == "set":
        return {k: v for k, v in spec["overrides"].items() if k != "alpha"}
    return spec.get(name)


def _has(run: Document, name: str, wanted: Any) -> bool:
    value = _field(run, name)
    return value in wanted if isinstance(wanted, tuple) else bool(value == wanted)


@dataclass(frozen=True)
class Evidence:
    """The source of all data that claims read, for a claim or for one of its counter-experiments.

    Attributes:
        store: holds the runs of the experiments.
        data_dir: folder of evaluation sets and recorded routing, or None.
        quick: whether experiments have fewer prompts, workloads and seeds.
        changes: changed fields of a counter-experiment; empty for the claim itself.
        numbers: places of uncertain numbers in their ranges, by field, as in
            `profile_ranges.number_at`; empty for the profiles' values.
    """

    store: Store
    data_dir: Path | None
    scratch: Path
    quick: bool
    changes: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    _planned: list[Planned] = field(default_factory=list)
    _jobs: dict[str, list[Job]] = field(default_factory=dict)
    _read: dict[str, Runs] = field(default_factory=dict)
    _seen: list[str] = field(default_factory=list)

    @property
    def planned(self) -> Planned:
        """What opens the inputs of cells; evidence that is changed or moved shares it."""
        if not self._planned:
            self._planned.append(Planned(self.data_dir))
        return self._planned[0]

    def changed(self, changes: Mapping[str, Any]) -> "Evidence":
        """Return the cells of ``--quick`` with the changed fields of a counter-experiment."""
        return replace(self, quick=True, changes=changes, _jobs={}, _read={}, _seen=[])

    def moved(self, numbers: Mapping[str, float]) -> "Evidence":
        """Return the cells of ``--quick`` with numbers at other places of their ranges."""
        return replace(self, quick=True, numbers=numbers, _jobs={}, _read={}, _seen=[])

    def machine(self, name: str, software: str = DEFAULT_SOFTWARE) -> str:
        """Return a machine's name, with the numbers of this evidence in place of its own.

        A number whose place has the profile's own value is left out: its cells are the same.
        """
        known = uncertain(load_profile(name, software)) if self.numbers else []
        places = {one.field: number_at(one, self.numbers.get(one.field, 0.0)) for one in known}
        own = {one.field: one.number.value for one in known}
        return machine_with(name, {f: v for f, v in places.items() if v != own[f]})

    def watched(self) -> "Evidence":
        """Return this evidence with an empty list of used runs."""
        return replace(self, _seen=[])

    @property
    def used(self) -> tuple[str, ...]:
        """Ids of the runs that were read through this evidence."""
        return tuple(dict.fromkeys(self._seen))

    def specs(self, experiment: Experiment) -> list[RunSpec]:
        """Return the cells of an experiment as run specifications.

        Raises:
            UsageError, InputError: the experiment cannot be expanded.
            MissingEvidenceError: a cell needs prompts of a data folder, and there is none.
        """
        found = [
            spec.model_copy(update={"machine": self.machine(spec.machine, spec.software)})
            if spec.machine != "local" else spec
            for spec in expand(experiment.plan(self.quick, self.changes), self.data_dir)
        ]  # fmt: skip
        if self.data_dir is None:
            asked = {spec.workload for spec in found if spec.trace is None}
            for name in sorted(asked):
                if workload(name).source != "generated":
                    raise MissingEvidenceError(
                        f"{experiment.name}: {name} lies in a data folder; give --data-dir DIR"
                    )
        return found

    def jobs(self, experiment: Experiment) -> list[Job]:
        """Return the cells of an experiment as jobs, with their cell ids."""
        if experiment.name not in self._jobs:
            self._jobs[experiment.name] = jobs_of(self.specs(experiment), self.planned)
        return self._jobs[experiment.name]

    def runs(self, *experiments: Experiment) -> Runs:
        """Return all runs of some experiments.

        Raises MissingEvidenceError: a cell failed.
        """
        return Runs(run for experiment in experiments for run in self._runs(experiment))

    def present(self, experiment: Experiment) -> Runs:
        """Return the runs of an experiment whose cells did not fail.

        Raises MissingEvidenceError: all failed.
        """
        jobs = self.jobs(experiment)
        finished = self.store.finished(job.cell_id for job in jobs)
        found = [self.store.get(finished.get(job.cell_id, "")) for job in jobs]
        runs = Runs(run for run in found if run is not None)
        if not runs:
            raise MissingEvidenceError(f"{experiment.name}: no cell could be run")
        self._seen.extend(runs.ids)
        return runs

    def _runs(self, experiment: Experiment) -> Runs:
        found = self._read.get(experiment.name)
        if found is None:
            found = self._read[experiment.name] = Runs(self._documents(experiment))
        self._seen.extend(found.ids)
        return found

    def recordings(self, model: str) -> list[Recording]:
        """Return the routing recordings of a model in the data folder.

        Raises:
            MissingEvidenceError: there is no data folder.
            InputError: the folder has no recording of the model.
        """
        if self.data_dir is None:
            raise MissingEvidenceError("recordings lie in a data folder; give --data-dir DIR")
        return recordings(model, self.data_dir)

    def _documents(self, experiment: Experiment) -> Iterator[Document]:
        jobs = self.jobs(experiment)
        finished = self.store.finished(job.cell_id for job in jobs)
        failed = {cell.cell_id: cell.error for cell in self.store.cells("failed")}
        for job in jobs:
            document = self.store.get(finished.get(job.cell_id, ""))
            if document is None:
                why = failed.get(job.cell_id) or "it was not run"
                raise MissingEvidenceError(f"{experiment.name}: {job.spec.title}: {why}")
            yield document
