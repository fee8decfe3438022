"""The rule that decides which runs may be compared, shared by tables, charts and commands.

Every option of a run has one part in a comparison, which is stated with the option
(`moebench.results.spec.Option.part`).  It says what a table is about (its *place*), or what must be
equal within the table (a *condition*), or which texts were read (a *cell*; a table's figures are
means over cells), or it is a choice of the *system*, and then runs that differ in it are rows of
their own.  What is left follows from the others.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from moebench.results.document import Document, dig, model_of, routing_of, system_of
from moebench.results.spec import OPTIONS, Option


class Condition(NamedTuple):
    """A property that must be equal in a comparison: its name, reader and text.

    Attributes:
        default: text that is not printed if all runs have it.
        quiet: whether it is printed only if runs differ in it.
        instead_of: the option whose effect this condition compares, in place of its value.
    """

    name: str
    of: Callable[[Document], Any]
    text: Callable[[Any], str] = str
    default: str | None = None
    quiet: bool = False
    instead_of: str = ""


def _gigabytes(count: int | None) -> str:
    return "?" if count is None else f"{count / 1e9:.2f} GB"


#: Text of a host memory that holds all weights: how much larger it is changes nothing.
ROOMY = "all weights"


def _host_memory(run: Document) -> str:
    """Return the offered host memory as text, or `ROOMY` if no system could need the disk.

    Free memory of a computer differs from run to run.
    """
    offered, needed = dig(run, "memory.offered_host_bytes"), _weight_bytes(run)
    fits = offered is not None and needed is not None and needed <= offered
    return ROOMY if fits else _gigabytes(offered)


#: Non-expert weights take at most this share of the experts' bytes in every model of the catalogue,
#: and at most all of them where only the experts are quantised.
COMMON_SHARE, COMMON_SHARE_QUANTISED = 0.25, 1.0


def _weight_bytes(run: Document) -> int | None:
    """Return at least the bytes of all weights as the run stored them; None if unknown."""
    slots, ratio = dig(run, "spec.slots"), dig(run, "spec.cache_ratio")
    record = dig(run, "memory.expert_bytes")
    if not (slots and ratio and record):
        return None
    alike = not run["spec"].get("quant") and _expert_precision(run) == _precision(run["spec"])
    share = COMMON_SHARE if alike else COMMON_SHARE_QUANTISED
    return int((1 + share) * round(slots / ratio) * record)


def _expert_precision(run: Document) -> str:
    quantised = dig(run, "spec.expert_dtype")
    if quantised is not None:
        return str(quantised)
    own = dig(run, "spec.options.expert_precision")
    return _precision(run["spec"]) if own in (None, "null") else str(own)


def _precision(spec: Mapping[str, Any]) -> str:
    """Return a run's GGUF format, or its precision without one."""
    return str(spec.get("quant") or spec.get("precision"))


def _hash(path: str) -> Callable[[Document], str]:
    """Return a reader of a hash's first 8 digits: names may differ while the content is equal."""
    return lambda run: str(dig(run, path) or "none")[:8]


def condition_of(option: Option) -> Condition:
    """Return the condition that an option's value is equal."""

    def text(value: Any) -> str:
        if not option.unit:
            return str(value)
        return "none" if value is None else f"{value:g} {option.unit}"

    return Condition(
        option.flag.removeprefix("--"),
        lambda run: run["spec"].get(option.name, option.default),
        text,
        default=None if option.named else text(option.default),
    )


#: Conditions that replace an option's value, and those that belong to no option.
_FIRST = (
    Condition("device-memory", lambda run: dig(run, "memory.offered_device_bytes"), _gigabytes,
              instead_of="device_memory_gib"),
    Condition("host-memory", _host_memory, default=ROOMY, instead_of="free_host_gb"),
    Condition("expert-precision", _expert_precision, instead_of="expert_dtype"),
)  # fmt: skip
_LAST = (
    Condition("weights", _hash("provenance.weights_hash"), quiet=True, instead_of="weights"),
    Condition("profile", _hash("provenance.profile_hash"), quiet=True),
)


def conditions(options: Iterable[Option]) -> tuple[Condition, ...]:
    """Return the comparison conditions of the given options, in display order."""
    replaced = {condition.instead_of for condition in (*_FIRST, *_LAST)}
    plain = [one for one in options if one.part == "condition" and one.name not in replaced]
    return (*_FIRST, *map(condition_of, sorted(plain, key=lambda one: one.rank)), *_LAST)


CONDITIONS = conditions(OPTIONS.values())

#: A figure is a mean over these; runs that differ in them are not comparable either.
OF_CELLS = ("workloads", "seed")

#: Names that ``--mixed`` accepts.
NAMES = (*(condition.name for condition in CONDITIONS), *OF_CELLS)


def conditions_of(run: Document) -> dict[str, str]:
    """Return a run's conditions by name, as text."""
    return {condition.name: condition.text(condition.of(run)) for condition in CONDITIONS}


class ComparisonGroup(NamedTuple):
    """Comparison group: what all runs of a table have in common; each group has its own tables."""

    where: str
    batch: int
    routing: str
    model: str
    machine: str
    precision: str
    simulated: bool

    @property
    def title(self) -> str:
        """Short title: where, batch and routing."""
        kind = "" if self.routing == "model" else f", routing {self.routing}"
        return f"{self.where}, batch {self.batch}{kind}"

    @property
    def parts(self) -> dict[str, str]:
        """Properties that the title does not contain, by name."""
        return {
            "model": self.model,
            "machine": self.machine,
            "precision": self.precision,
            "times": "simulated" if self.simulated else "measured",
        }


def place_of(run: Document) -> ComparisonGroup:
    """Return the comparison group of a run."""
    spec = run["spec"]
    where = spec.get("setting") or f"{spec.get('model')} on {spec.get('machine')}"
    # A trace's name contains its workload, over which tables average.
    routing = "replayed" if spec.get("trace") else routing_of(spec)
    return ComparisonGroup(
        where, spec.get("batch", 1), routing, str(model_of(run)), str(spec.get("machine")),
        _precision(spec), bool(run["simulated"]),
    )  # fmt: skip


class InputSet(NamedTuple):
    """Input set of a run: workload, seed and hash of the data."""

    workload: str
    seed: str
    data: str

    @property
    def title(self) -> str:
        """Workload and seed as text."""
        return f"{self.workload}, seed {self.seed}"


def cell_of(run: Document) -> InputSet:
    """Return a run's input set: another sample of the same workload is another one."""
    spec = run["spec"]
    data = dig(run, "provenance.trace_hash") or dig(run, "provenance.data_hash")
    return InputSet(str(spec.get("workload")), str(spec.get("seed", 0)), str(data))


def title_of(run: Document) -> str:
    """Return the name of a run's system in comparisons, with all of its changed options."""
    spec = run["spec"]
    chosen = dict(spec.get("overrides") or {})
    if "alpha" not in chosen and spec.get("alpha") is not None:
        chosen["alpha"] = f"{spec['alpha']:g}"
    # `system_of` names the system with its variant.
    known = {"system", "variant", "overrides", *chosen}
    for name, option in OPTIONS.items():
        if option.part == "system" and name not in known:
            value = spec.get(name, option.default)
            chosen |= {} if value == option.default else {name: str(value)}
    oracle = ["(oracle)"] if run.get("oracle") else []
    return " ".join(
        [system_of(spec), *oracle, *(f"{key}={value}" for key, value in sorted(chosen.items()))]
    )


#: By a setting's name, the options that it sets and their values.
Settings = Mapping[str, Mapping[str, Any]]
NO_SETTINGS: Settings = {}


def distance(run: Document, settings: Settings) -> tuple[int, float]:
    """Return how far a run's conditions are from those of its setting's paper; (0, 0) if equal.

    Returns:
        The number of stated options that differ, and the absolute logarithm of the device's memory
        (its bytes, or its slots) over the paper's.
    """
    spec, stated = run["spec"], settings.get(str(run["spec"].get("setting")), {})
    offered = dig(run, "memory.offered_device_bytes")
    sizes = {
        "cache_ratio": spec.get("cache_ratio"), "slots": spec.get("slots"),
        "device_memory_gib": offered and offered / 2**30,
    }  # fmt: skip
    differ = sum(spec.get(key) != value for key, value in stated.items() if key not in sizes)
    ratios = [size / stated[key] for key, size in sizes.items() if size and key in stated]
    return differ, max((abs(math.log(ratio)) for ratio in ratios), default=0.0)


def lacks(run: Document) -> list[str]:
    """Return the fields that a comparison needs and the document lacks."""
    needed = ("spec.system", "spec.workload", "spec.machine", "spec.model", "metrics", "badge",
              "simulated", "provenance")  # fmt: skip
    return [path for path in needed if dig(run, path) is None]


def newest(runs: Iterable[Document]) -> tuple[list[Document], list[Document]]:
    """Split runs into those whose inputs are the newest for their spec, and older ones.

    A store keeps runs of earlier code, weights, prompts and profiles.  Repeated measurements
    with equal inputs stay together.
    """
    alike: dict[str, list[Document]] = {}
    for run in runs:
        spec = {key: value for key, value in run["spec"].items() if key != "options"}
        offered = [condition.of(run) for condition in _FIRST[:2]]
        text = json.dumps([spec, offered], sort_keys=True, default=str)
        alike.setdefault(text, []).append(run)
    kept: list[Document] = []
    older: list[Document] = []
    for ones in alike.values():
        last = max(ones, key=lambda run: str(dig(run, "provenance.created")))
        for run in ones:
            (kept if _read(run) == _read(last) else older).append(run)
    return kept, older


def _read(run: Document) -> list[Any]:
    names = ("code", "system", "weights", "trace", "data", "profile")
    return [dig(run, f"provenance.{name}_hash") for name in names]
