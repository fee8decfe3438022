"""What a run is: every choice that changes its numbers, resolved to the last default."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moebench.harness.run.local_options import check_local, check_software_here
from moebench.harness.run.native_options import check_native
from moebench.harness.settings import Setting, few_shot_count, setting
from moebench.substrate.engine.system import System
from moebench.substrate.errors import NotApplicableError, UsageError
from moebench.substrate.files import brief_word
from moebench.substrate.machines.profile import DEFAULT_SOFTWARE
from moebench.substrate.models.catalogue import is_file, model_names, model_shape
from moebench.substrate.models.shape import ExpertDtype, Precision, check_quantises
from moebench.systems.native.base import NativeSystem
from moebench.systems.options import build, build_any, build_native, describe
from moebench.systems.registry import NATIVE, Variant, name_of, system_class
from moebench.workloads.catalogue import DEFAULT_WORKLOAD, workload
from moebench.workloads.hub import is_hub

if TYPE_CHECKING:
    from moebench.substrate.traces.recordings import Text

#: How questions are answered; see `harness.run.answers`.
Scoring = Literal["fixed-length", "generation", "likelihood", "prefill"]

#: Where a run's choice of experts comes from: the model that computes (or a trace of it), a trace
#: drawn with the statistics of real models, or recordings of the real model.
Routing = Literal["model", "drawn", "real"]

PageCache = Literal["bypass", "keep"]

#: What computes on this computer.
LocalDevice = Literal["cpu", "cuda"]

#: Rounded up to whole batches.
DEFAULT_PROMPTS = 32


#: More of anything is a slip of the pen.
MOST = 10**7


class RunSpec(BaseModel):
    """One cell: a system on a model on a machine, with its input.

    Two runs with equal specs, code and data give equal results; the spec's hash is the run's id.

    Attributes:
        variant: the system of the paper, or what its authors' code does.
        machine: a name of the catalogue, a profile's path, or ``local``.
        software: the kind of software whose costs the control thread is charged; a run on this
            computer is measured with our own engine, ``lean``, or a package itself, ``native``.
        model: the full-size model whose bytes and operations are charged: a name, or the path of a
            ``config.json``.
        weights: a checkpoint that does the mathematics; None is the model's scale model.
        expert_dtype: what routed experts are really quantised to: kept, moved, charged and computed
            with; None leaves them as they are.
        cache_ratio, slots: routed experts on the device, as a share of all or in number; without
            either they fill its memory.
        device_memory_gib: what weights and KV cache may use of the device's memory, in GiB; None is
            all but context and workspace.
        device: what computes on this computer, its processor or its CUDA device.
        free_host_gb: host memory that experts may use, in GB; None is all of the machine's.
        emulated_link_gb_s: on this computer, the rate of a link between two parts of its memory,
            the device's and the host's; None has the disk below the device.
        page_cache: on this computer, whether the disk is read past the page cache or through it.
        overrides: changed decisions and options of the system, as ``--set`` takes them.
        prompts: how many, in whole batches; ``batch`` of them are decoded together.
        new_tokens: generated for each prompt; at most, where an answer may end earlier.
        scoring: how questions are answered; see `harness.run.answers`.
        few_shot: worked examples before each question.
        plain_prompts: leave the checkpoint's chat template out, if it brings one.
        calibrate_from: the workload whose train split a learning system learns from; None is the
            run's own.
        calibrate_texts: how many texts it is shown; None is its paper's number, or all that there
            are.
        routing: where experts' choice comes from; see `harness.run.routing`.
        trace: a recorded trace that is replayed instead of computing.
        reconstruct_scores: let scores by rank stand for gate scores that it does not hold.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    system: str
    variant: Variant = "published"
    setting: str | None = None
    machine: str
    software: str = DEFAULT_SOFTWARE
    model: str
    weights: str | None = None
    precision: Precision = "bf16"
    expert_dtype: ExpertDtype | None = None
    workload: str
    batch: int = Field(default=1, gt=0, le=256)
    prompts: int = Field(default=DEFAULT_PROMPTS, gt=0, le=MOST)
    new_tokens: int = Field(default=64, gt=0, le=MOST)
    cache_ratio: float | None = Field(default=None, gt=0, le=1)
    slots: int | None = Field(default=None, gt=0, le=MOST)
    allow_overcommit: bool = False
    device_memory_gib: float | None = Field(default=None, gt=0, le=MOST)
    free_host_gb: float | None = Field(default=None, gt=0, le=MOST)
    emulated_link_gb_s: float | None = Field(default=None, gt=0, le=MOST)
    page_cache: PageCache = "bypass"
    device: LocalDevice = "cpu"
    overrides: dict[str, str] = Field(default_factory=dict)
    seed: int = Field(default=0, ge=0, lt=2**63)
    scoring: Scoring = "fixed-length"
    few_shot: int = Field(default=0, ge=0, le=MOST)
    plain_prompts: bool = False
    calibrate_from: str | None = None
    calibrate_texts: int | None = Field(default=None, gt=0, le=MOST)
    routing: Routing = "model"
    trace: str | None = None
    reconstruct_scores: bool = False

    @property
    def title(self) -> str:
        """How the system is called: ``smoe``, or ``smoe (shipped)``."""
        return self.system if self.variant == "published" else f"{self.system} ({self.variant})"

    def make_system(self) -> System:
        """The system of this run, built anew."""
        return build(self.system, self.overrides, self.variant)

    def make_native(self) -> NativeSystem:
        """The native system of this run, built anew."""
        return build_native(self.system, self.overrides)

    @property
    def native(self) -> bool:
        """Whether a third-party package runs by itself."""
        return self.system in NATIVE

    @property
    def replays(self) -> bool:
        """Whether routing is replayed instead of computed."""
        return self.trace is not None or self.routing != "model"


def resolve(data_dir: Path | None, **given: Any) -> RunSpec:
    """A full spec from what the user gave; None means "not given".

    A setting supplies model, machine, precision, experts on the device and lengths; what was given
    wins.

    Raises:
        UnknownNameError, UsageError: a name or value that cannot be; one line.
    """
    chosen = {key: value for key, value in given.items() if value is not None}
    for key in PATHS & chosen.keys():
        chosen[key] = _one_spelling(key, chosen[key])
    system, variant = chosen["system"], chosen.get("variant", "published")
    if system not in NATIVE:
        system_class(system, variant)
    alpha, default_alpha = chosen.pop("alpha", None), None
    if "setting" in chosen:
        row = setting(chosen["setting"])
        chosen["setting"] = row.name
        if variant == "published":  # a setting's α is its paper's
            default_alpha = row.alpha
        chosen = {**_defaults(row, chosen), **chosen}
    if "calibrate_from" in chosen:  # even where nothing learns
        workload(chosen["calibrate_from"])
    if system in NATIVE:
        check_native(chosen, alpha)
    check_software_here(chosen, given)
    check_local(chosen)
    if "cache_ratio" in chosen and "slots" in chosen:
        raise UsageError(
            f"--cache-ratio {chosen['cache_ratio']} and --slots {chosen['slots']}: both say how "
            "many experts the device keeps; give one of them"
        )
    if "trace" in chosen:
        chosen = _of_trace(chosen, given)
    elif "reconstruct_scores" in chosen:
        raise UsageError("--reconstruct-scores: a trace's scores are meant; give --trace DIR")
    if chosen.get("routing", "model") != "model":
        _check_routing(chosen)
    if "model" not in chosen and "weights" in chosen:
        # What is measured, or charged, is the checkpoint itself.
        chosen["model"] = (Path(chosen["weights"]) / "config.json").as_posix()
    for key, hint in (("model", "--model NAME"), ("machine", "--machine NAME")):
        if key not in chosen:
            raise UsageError(f"no {key}: give --setting NAME or {hint}")
    if chosen.get("routing") == "real":
        chosen |= _of_recordings(chosen, given, data_dir)
    chosen.setdefault("workload", DEFAULT_WORKLOAD)
    if chosen.get("scoring", "fixed-length") != "fixed-length" and given.get("new_tokens") is None:
        chosen["new_tokens"] = workload(chosen["workload"]).max_new_tokens
    asked = str(chosen.get("few_shot", "0"))
    chosen["few_shot"] = few_shot_count(asked, chosen["workload"], chosen.get("setting"))
    overrides = chosen.get("overrides", {})
    if system not in NATIVE:
        overrides = _with_alpha(system, variant, overrides, alpha, default_alpha)
    # Spelled as the system spells them: 0.30 and 0.3 are one run.
    spelled = describe(build_any(system, overrides, variant))
    chosen["overrides"] = {key: spelled[key] for key in overrides}
    batch = chosen.get("batch", 1)
    if isinstance(batch, int) and batch > 0:
        chosen.setdefault("prompts", -(-DEFAULT_PROMPTS // batch) * batch)
    try:
        spec = RunSpec(**chosen)
    except ValidationError as error:
        detail = error.errors()[0]
        name = str(detail["loc"][0]).replace("_", "-")
        raise UsageError(f"--{name} {brief_word(detail['input'])}: {detail['msg']}") from error
    if spec.prompts % spec.batch:
        raise UsageError(
            f"--prompts {spec.prompts} does not fill batches of {spec.batch}; allowed: multiples "
            f"of {spec.batch}"
        )
    _check_applicable(spec)
    return spec


#: What may be named by a path.
PATHS = {"machine", "model", "weights", "trace"}


def _one_spelling(key: str, name: str) -> str:
    """A path as it is written most shortly, so that ``./m.yaml`` and ``m.yaml`` are one machine.

    Raises:
        UsageError: there is no name in it.
    """
    if not name.strip() or "\0" in name:
        raise UsageError(f"--{key} {name!r}: expected a name or a path")
    return Path(os.path.normpath(name)).as_posix() if "/" in name or os.sep in name else name


def _check_applicable(spec: RunSpec) -> None:
    """Refuse a model or a batch for which the system does not exist."""
    if spec.model in model_names() or is_file(spec.model):
        system = build_any(spec.system, spec.overrides, spec.variant)
        shape = model_shape(spec.model)
        if spec.expert_dtype is not None:
            check_quantises(shape, spec.expert_dtype)
        reason = system.why_not(shape, spec.batch)
        if reason is not None:
            raise NotApplicableError(f"{spec.title} with {spec.model}: {reason}")


#: What a replay has no use for: on this computer it computes with random weights.
NOT_REPLAYED = ("weights", "workload", "scoring", "few_shot", "plain_prompts", "seed")

#: The same for each routing.  A drawn trace has the lengths of a workload's prompts; the seed draws
#: it, or a recording's predictions.
NOT_ROUTED = {
    "drawn": ("weights", "scoring", "plain_prompts", "calibrate_from"),
    "real": ("weights", "scoring", "plain_prompts", "calibrate_from", "workload", "few_shot"),
}


def _of_trace(chosen: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """A trace says its model and workload, and how much can be asked for."""
    from moebench.substrate.traces.catalogue import find_trace
    from moebench.substrate.traces.file import open_trace

    _check_unused(chosen, NOT_REPLAYED, "--trace", "a trace has its own")
    if "routing" in chosen:
        raise UsageError(f"--routing {chosen['routing']} and --trace: give one of them")
    trace = open_trace(find_trace(chosen["trace"]))
    longest = max(map(trace.passes, range(len(trace.sequences))))
    wanted = _as_much_as(chosen, given, chosen["trace"], len(trace.sequences), longest)
    return {
        "model": trace.header.model, **chosen, "workload": trace.header.workload, **wanted,
    }  # fmt: skip


def _check_routing(chosen: dict[str, Any]) -> None:
    routing = chosen["routing"]
    if routing not in NOT_ROUTED:
        raise UsageError(f"--routing {routing}: allowed: {', '.join(get_args(Routing))}")
    why = "routing is replayed, nothing is computed"
    _check_unused(chosen, NOT_ROUTED[routing], f"--routing {routing}", why)


def _of_recordings(
    chosen: dict[str, Any], given: dict[str, Any], data_dir: Path | None
) -> dict[str, Any]:
    """Recordings say their workload, and how much can be asked for."""
    from moebench.substrate.traces.recordings import replayable, workload_of

    new_tokens = chosen.get("new_tokens", RunSpec.model_fields["new_tokens"].default)
    texts = recorded_texts(chosen["model"], max(1, new_tokens), data_dir)
    what = f"recordings of {chosen['model']}"
    longest = max(text.passes for text in texts)
    wanted = _as_much_as(
        {"new_tokens": new_tokens, **chosen}, given, what, replayable(texts), longest
    )
    return {"workload": workload_of(texts), **wanted}


def recorded_texts(model: str, new_tokens: int, data_dir: Path | None) -> "list[Text]":
    """What was recorded of a model, as texts of so many new tokens.

    Raises:
        UsageError: there is no data folder.
        InputError: it holds no recording of this model.
    """
    from moebench.substrate.traces.recordings import recordings, texts

    if data_dir is None or is_hub(data_dir):
        raise UsageError(
            "--routing real: needs a data folder that holds recordings; give --data-dir DIR, or "
            "--routing drawn, which needs none"
        )
    return texts(recordings(model, data_dir), new_tokens)


def _check_unused(
    chosen: dict[str, Any], unused: tuple[str, ...], option: str, why: str
) -> None:  # fmt: skip
    """Refuse what a replay would ignore."""
    for key in unused:
        if key in chosen:
            raise UsageError(f"--{key.replace('_', '-')} and {option}: {why}")


def _as_much_as(
    chosen: dict[str, Any], given: dict[str, Any], what: str, sequences: int, longest: int
) -> dict[str, Any]:
    """Prompts and new tokens of a replay: at most what it holds.

    Args:
        what: is replayed.
        longest: passes of its longest sequence.
    """
    batch = chosen.get("batch", 1)
    whole = max(1, batch) * (sequences // max(1, batch))
    for key, has, unit in (("prompts", whole, "prompts"), ("new_tokens", longest, "new tokens")):
        if (given.get(key) or 0) > has:
            raise UsageError(f"--{key.replace('_', '-')} {given[key]}: {what} holds {has} {unit}")
    if not whole:
        raise UsageError(f"--batch {batch}: {what} holds {sequences} prompts")
    return {
        "prompts": whole if given.get("prompts") is None else given["prompts"],
        "new_tokens": min(chosen.get("new_tokens", longest), longest),
    }


#: The system's option that holds α.
ALPHA = "alpha"


def _with_alpha(
    system: str, variant: str, overrides: Mapping[str, str], given: float | None,
    default: float | None,
) -> dict[str, str]:  # fmt: skip
    """α as an option of the system, if its routing has one; `--set` beats the setting's."""
    route = build(system, {k: v for k, v in overrides.items() if k == "route"}, variant).route
    if not route.has_alpha:
        if given is not None:
            name = name_of("route", route)
            raise UsageError(f"--alpha: {system} with route={name} has no α; smoe has one")
        return dict(overrides)
    if given is not None and ALPHA in overrides:
        raise UsageError(
            f"--alpha {given:g} and --set {ALPHA}={overrides[ALPHA]}: give one of them"
        )
    alpha = default if given is None else given
    return dict(overrides) if alpha is None else {ALPHA: f"{alpha:.12g}", **overrides}


#: Two ways of saying how many experts the device keeps: one that is given replaces the setting's.
SLOTS = ("cache_ratio", "slots")


def _defaults(row: Setting, chosen: Mapping[str, Any]) -> dict[str, Any]:
    keys = ["model", "machine", "software", "precision", "new_tokens", "free_host_gb"]
    # A local run holds the share of experts that the setting's own machine would.
    if chosen.get("machine", row.machine) in (row.machine, "local"):
        keys.append("device_memory_gib")  # that of the paper's card, not of another one
    if not any(key in chosen for key in SLOTS):
        keys += SLOTS
    return {key: value for key in keys if (value := getattr(row, key)) is not None}
