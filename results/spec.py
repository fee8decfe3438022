"""The options of a run: each is a field of `RunSpec`, annotated with its description.

The command line, sweeps, comparisons, refusals and documentation read these descriptions
(`OPTIONS`).  A new option therefore costs two files: its field here, and the code that uses it.

    quantum: Annotated[int, Field(gt=0), Option(help="Tokens of a step.", part="condition")] = 1

adds ``--quantum`` to `moebench run`, the key ``quantum`` to a sweep's file (with ``axis="quanta"``
also ``--quanta`` to `moebench sweep`), a condition of every comparison, and a row of the table in
`docs/sweeps.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field

from moebench.substrate.choices import DEFAULT_SOFTWARE, ExpertDtype, Precision
from moebench.substrate.extensible import Extensible
from moebench.systems.registry import NATIVE, Variant

if TYPE_CHECKING:
    from moebench.substrate.engine.system import System
    from moebench.systems.native.base import NativeSystem

#: How a run produces and scores its answers.
Scoring = Literal["fixed-length", "generation", "likelihood", "prefill"]

#: Source of a run's expert choices: the model that computes (or a trace of it), a recording of that
#: model which is made once and replayed, a trace drawn with the statistics of real models, or
#: recordings of the real model.
Routing = Literal["model", "replayed", "drawn", "real"]

PageCache = Literal["bypass", "keep"]

#: The processor or the CUDA device of this computer.
LocalDevice = Literal["cpu", "cuda"]

#: Default number of prompts; rounded up to whole batches.
DEFAULT_PROMPTS = 32

#: Largest number that an option accepts: a larger one is a typing error.
MOST = 10**7

#: Largest temperature, as servers accept it.
MOST_TEMPERATURE = 2.0

#: Largest batch: FlexGen's authors measured up to 1,152 sequences, moebench's cost model is tested
#: up to this number.
MOST_BATCH = 1024

#: Role of an option in a comparison.  A *place* tells tables apart, a *condition* must be equal in
#: a table, a *cell* is one of the texts over which a table averages, runs that differ in *system*
#: are rows of their own, and an option that *follows* is determined by the others.
Part = Literal["place", "condition", "cell", "system", "follows"]

#: Kinds of run.  A run has one kind by its machine (``simulated``, ``local``, ``card``, ``native``)
#: and one by its source of routing (``computed``, ``trace``, ``drawn``, ``real``); besides, an
#: evaluator may choose the prompts (``evaluated``).
Kind = Literal[
    "simulated",
    "local",
    "card",
    "native",
    "computed",
    "trace",
    "replayed",
    "drawn",
    "real",
    "evaluated",
]

#: All kinds of run.
EVERY: frozenset[Kind] = frozenset(get_args(Kind))

#: Error messages for options without effect, by kind of run.
WHY: dict[Kind, str] = {
    "simulated": "{option} {value}: this computer is meant; add --machine local",
    "card": (
        "{option} and --device cuda: a card's experts are in host memory, behind its own link; "
        "give one"
    ),
    "native": "{option} and --system {system}: a package runs by itself",
    "trace": "{option} and --trace: a trace has its own",
    "replayed": "{option} and --routing replayed: routing is replayed, no answer is computed",
    "drawn": "{option} and --routing drawn: routing is replayed, nothing is computed",
    "real": "{option} and --routing real: routing is replayed, nothing is computed",
    "local": "{option} and --machine local: no text of that length is computed there",
    "evaluated": "{name}: an evaluator chooses its questions and how they are put",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Description of an option of a run, except its range.

    Attributes:
        help: one line for ``--help``, with a full stop.
        detail: more text for the documentation's table.
        part: its role in a comparison.
        rank: conditions are shown in this order, then in the order of the options.
        named: whether a comparison names this condition even where all runs have its default.
        on: kinds of run on which it has an effect; on others it is refused (`WHY`).
        own: whether runs that share weights and prompts (or a trace) may differ in it: never,
            always, or in replays alone.
        axis: its parameter of `moebench sweep`; "" if only a sweep's file has it.
        typed: its parameter on the command line; "" for the field's name.
        former: names of an option that was renamed, which are still understood: of the option, and
            of its axis.  A sweep's file and Python then understand ``typed``, too.
        unit: of a value that is typed as text with its unit, the unit of the field.
        word: a word that may be typed in place of a number.
        shown: the default as ``--help`` shows it; "" shows a field's own where it is a number.
        catalogue: the list that holds its values (`moebench list`), for completion in the shell.
        path: whether its value may be, or always is, the path of a file or folder.
        negatable: whether a flag may be typed as ``--no-...`` too.
        needed: whether a command that has it refuses to run without it.
        name, type, default: of the field, without None; `options_of` fills them in.
    """

    help: str
    detail: str = ""
    part: Part
    rank: int = 9
    named: bool = False
    on: frozenset[Kind] = EVERY
    own: Literal["never", "always", "replay"] = "never"
    axis: str = ""
    typed: str = ""
    former: tuple[str, str] | None = None
    unit: Literal["", "GiB", "GB/s"] = ""
    word: str = ""
    shown: str = ""
    catalogue: str = ""
    path: Literal["", "may be", "is"] = ""
    negatable: bool = False
    needed: bool = False
    name: str = ""
    type: Any = None
    default: Any = None

    @property
    def flag(self) -> str:
        """The option's flag: ``--device-memory`` for ``device_memory_gib``."""
        return flag_of(self.typed or self.name)

    @property
    def plain(self) -> Any:
        """Type of its values without their range: str, int, float, bool or dict."""
        return str if get_origin(self.type) is Literal else get_origin(self.type) or self.type


def flag_of(name: str) -> str:
    """Return a parameter's flag: ``--cache-ratio`` for ``cache_ratio``."""
    return f"--{name.replace('_', '-')}"


class RunSpec(Extensible):
    """Configuration of one run: system, model, machine and input.

    Two runs with equal specs, code and data give equal results; the spec's hash is the run's id.
    """

    NEWER: ClassVar[frozenset[str]] = frozenset(
        {"quant", "context", "temperature", "top_p", "clairvoyant"}
    )

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # fmt: off
    system: Annotated[str, Option(
        help="System to run: a name from moebench list systems, or module:Class.",
        part="system", own="always", axis="systems", catalogue="systems", needed=True)]
    variant: Annotated[Variant, Option(
        help="Variant: published [default], or shipped (as in the authors' code).",
        part="system", own="always")] = "published"
    setting: Annotated[str | None, Option(
        help="Setting of a paper; see moebench list settings.",
        part="place", own="always", axis="settings", catalogue="settings")] = None
    machine: Annotated[str, Option(
        help="Machine: a profile's name, parts, a .yaml file, or local (this computer).",
        detail="Other values of its numbers may follow: `a6000+host.gemv_bandwidth=26`.",
        part="place", own="always", axis="machines", catalogue="machines", path="may be")]
    software: Annotated[str, Option(
        help="Kind of software to charge for; see moebench list software.",
        detail="The control thread is charged the costs of this kind of software.",
        part="condition", rank=6, named=True, own="always", axis="software", catalogue="software",
        )] = DEFAULT_SOFTWARE
    model: Annotated[str, Option(
        help="Model whose size is charged: a name, a config.json or a .gguf.",
        detail="A name, or the path of a `config.json`, a `.yaml` of its shape, or a `.gguf`.",
        part="place", axis="models", catalogue="models", path="may be")]
    weights: Annotated[str | None, Option(
        help="Folder of the checkpoint to compute with.", shown="the model's scale model",
        part="condition", on=EVERY - {"trace", "drawn", "real"}, path="is")] = None
    precision: Annotated[Precision, Option(
        help="Precision of the charged model: bf16, fp16, fp32, 4bit, 4bit-g64 or 2bit.",
        detail="Precision of the model whose bytes are charged.",
        part="place")] = "bf16"
    quant: Annotated[str | None, Option(
        help="Bits of a GGUF format, such as q4_k_m or mxfp4, in place of --precision.",
        detail="Bits per weight of routed experts and of all other weights are charged; a `.gguf` "
        "given as `--model` has its own (`file`).", shown="as --precision",
        part="place", on=EVERY - {"native"})] = None
    expert_dtype: Annotated[ExpertDtype | None, Option(
        help="Quantise the routed experts to int8 or int4.", shown="as they are",
        detail="Experts are kept, moved, charged and computed with in this type.",
        part="condition", on=EVERY - {"native"})] = None
    workload: Annotated[str, Option(
        help="Workload that supplies the prompts; see moebench list workloads.",
        part="cell", axis="workloads", catalogue="workloads",
        on=EVERY - {"trace", "real", "evaluated"})]
    batch: Annotated[int, Field(gt=0, le=MOST_BATCH), Option(
        help="Sequences decoded together (batch size).", detail="1 to 1,024.",
        part="place", own="replay", axis="batches")] = 1
    prompts: Annotated[int, Field(gt=0, le=MOST), Option(
        help="Number of prompts.", detail="They fill whole batches.",
        part="condition", rank=1, named=True, own="replay", axis="prompts",
        on=EVERY - {"evaluated"})] = DEFAULT_PROMPTS
    new_tokens: Annotated[int, Field(gt=0, le=MOST), Option(
        help="Tokens to generate per prompt.", detail="At most, where an answer may end earlier.",
        part="condition", rank=2, named=True, own="replay", axis="new_tokens",
        on=EVERY - {"evaluated"})] = 64
    context: Annotated[int, Field(ge=0, le=MOST), Option(
        help="Tokens in the KV cache before each prompt, in a replay.",
        detail="They take memory and attention reads them; their prefill is not simulated.",
        part="place", own="replay", axis="contexts",
        on=EVERY - {"local", "card", "native", "evaluated"})] = 0
    cache_ratio: Annotated[float | None, Field(gt=0, le=1), Option(
        help="Share of the routed experts that fit on the device, 0 to 1.",
        detail="A share of all routed experts; without it or `slots` they fill the memory.",
        part="follows", own="always", axis="capacities", typed="capacity",
        former=("cache_ratio", "cache_ratios"))] = None
    slots: Annotated[int | None, Field(gt=0, le=MOST), Option(
        help="Number of routed experts that fit on the device.",
        part="follows", own="always")] = None
    allow_overcommit: Annotated[bool, Option(
        help="Allow more experts than the device can hold.",
        part="follows", own="always", negatable=True, on=EVERY - {"native"})] = False
    device_memory_gib: Annotated[float | None, Field(gt=0, le=MOST), Option(
        help="Device memory for weights and KV cache, such as 12GB or 12GiB.", shown="all",
        detail="All is what context and workspace leave.",
        part="condition", own="always", typed="device_memory", unit="GiB")] = None
    free_host_gb: Annotated[float | None, Field(gt=0, le=MOST), Option(
        help="Host memory for experts, in GB; the other experts are on disk.", shown="all",
        part="condition", own="always")] = None
    emulated_link_gb_s: Annotated[float | None, Field(gt=0, le=MOST), Option(
        help="With --machine local: experts in memory behind an emulated link, such as 4GB/s.",
        detail="The rate between the device's part of memory and the host's; without it the disk "
        "lies below the device.",
        part="condition", own="always", typed="emulated_link", unit="GB/s",
        on=EVERY - {"simulated", "card", "native"})] = None
    page_cache: Annotated[PageCache, Option(
        help="With --machine local: bypass [default] or keep the page cache of the disk.",
        part="condition", own="always", on=EVERY - {"simulated", "card", "native"})] = "bypass"
    device: Annotated[LocalDevice, Option(
        help="With --machine local: compute on cpu [default] or cuda.",
        part="condition", own="always", on=EVERY - {"simulated", "native"})] = "cpu"
    overrides: Annotated[dict[str, str], Option(
        help="Policy or option of the system, as key=value; repeatable.",
        detail="Changed decisions and options of the system; `set` in a sweep's file.",
        part="system", own="always", typed="set")] = Field(default_factory=dict)
    seed: Annotated[int, Field(ge=0, lt=2**63), Option(
        help="Random seed for drawing the prompts, and tokens with --temperature.",
        part="cell", axis="seeds", on=EVERY - {"trace"})] = 0
    scoring: Annotated[Scoring, Option(
        help="Scoring mode: fixed-length [default], generation, likelihood or prefill.",
        part="condition", rank=5, named=True,
        on=EVERY - {"trace", "replayed", "drawn", "real", "evaluated"})] = "fixed-length"
    temperature: Annotated[float, Field(ge=0, le=MOST_TEMPERATURE), Option(
        help="Temperature at which tokens are drawn, 0 to 2; 0 takes the likeliest.",
        detail="Live runs only: a replay's text is the trace's. With `fixed-length` there is then "
        "no score.",
        part="condition", own="always", axis="temperatures",
        on=EVERY - {"native", "trace", "replayed", "drawn", "real", "evaluated"})] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1), Option(
        help="Draw among the likeliest tokens whose probabilities add up to this, above 0 to 1.",
        detail="Needs a temperature above 0.",
        part="condition", own="always",
        on=EVERY - {"native", "trace", "replayed", "drawn", "real", "evaluated"})] = 1.0
    few_shot: Annotated[int, Field(ge=0, le=MOST), Option(
        help="Worked examples before each question; paper: as many as the paper used.",
        part="condition", rank=3, word="paper", on=EVERY - {"trace", "real", "evaluated"})] = 0
    plain_prompts: Annotated[bool, Option(
        help="Do not apply the checkpoint's chat template.",
        part="condition", rank=4, on=EVERY - {"trace", "drawn", "real", "evaluated"})] = False
    calibrate_from: Annotated[str | None, Option(
        help="Workload whose training split a system is fitted on.", shown="the run's",
        part="system", catalogue="workloads", on=EVERY - {"native", "drawn", "real"})] = None
    calibrate_texts: Annotated[int | None, Field(gt=0, le=MOST), Option(
        help="Number of texts that a system is fitted on.", shown="its paper's number",
        detail="All that there are, where its paper has no number.",
        part="system", on=EVERY - {"native"})] = None
    routing: Annotated[Routing, Option(
        help="Source of routing: model [default], replayed, drawn (synthetic) or real (recorded).",
        detail="`replayed` records what the model chooses once, and replays it for all systems.",
        part="place", axis="routings", on=EVERY - {"native", "evaluated"})] = "model"
    trace: Annotated[str | None, Option(
        help="Replay a recorded trace instead of computing.",
        part="place", axis="traces", path="may be", on=EVERY - {"native", "evaluated"})] = None
    reconstruct_scores: Annotated[bool, Option(
        help="Reconstruct gate scores from ranks, for a trace without scores.",
        part="condition", negatable=True, on=EVERY - {"native", "evaluated"})] = False
    clairvoyant: Annotated[bool, Option(
        help="Compute the clairvoyant and the information bound, by linear programs.",
        detail="Half a minute for a sample of the texts.",
        part="follows", own="always", on=EVERY - {"native"})] = False
    # fmt: on

    @property
    def title(self) -> str:
        """Name and variant of the system: ``smoe``, or ``smoe (shipped)``."""
        return self.system if self.variant == "published" else f"{self.system} ({self.variant})"

    def make_system(self) -> "System":
        """Build a new instance of the run's system."""
        from moebench.systems.options import build

        return build(self.system, self.overrides, self.variant)

    def make_native(self) -> "NativeSystem":
        """Build a new instance of the run's third-party package adapter."""
        from moebench.systems.options import build_native

        return build_native(self.system, self.overrides)

    @property
    def native(self) -> bool:
        """Whether the system is a third-party package with its own engine."""
        return self.system in NATIVE

    @property
    def replays(self) -> bool:
        """Whether routing is replayed instead of computed."""
        return self.trace is not None or self.routing != "model"


#: Options of the system that are typed as options of the run.
TYPED_ONLY = {
    "alpha": Option(
        name="alpha", type=float, help="Substitution threshold α of the system.",
        detail="An option of systems that substitute experts.",
        part="system", own="always", axis="alphas", on=EVERY - {"native"},
    )
}  # fmt: skip


def options_of(spec: type[BaseModel]) -> dict[str, Option]:
    """Return the options of a pydantic model's fields by name, in the fields' order.

    Raises TypeError: a field has no `Option`.
    """
    found = {}
    for name, field in spec.model_fields.items():
        option = next((one for one in field.metadata if isinstance(one, Option)), None)
        if option is None:
            raise TypeError(f"{spec.__name__}.{name}: has no Option; write Annotated[..., Option]")
        kind, default = field.annotation, field.get_default(call_default_factory=True)
        if NoneType in get_args(kind):
            kind = next(one for one in get_args(kind) if one is not NoneType)
        default = None if field.is_required() else default
        found[name] = replace(option, name=name, type=kind, default=default)
    return found


#: Every option of a run by name: the fields of `RunSpec`, and `TYPED_ONLY`.
OPTIONS = options_of(RunSpec) | TYPED_ONLY


def kinds(chosen: Mapping[str, Any]) -> tuple[Kind, Kind]:
    """Return a run's kinds: by its machine, and by its source of routing."""
    where: Kind = "simulated"
    if chosen["system"] in NATIVE:
        where = "native"
    elif chosen.get("machine") == "local":
        where = "card" if chosen.get("device") == "cuda" else "local"
    if chosen.get("trace") is not None:
        return where, "trace"
    routing = chosen.get("routing", "model")
    return where, "computed" if routing == "model" else routing
