"""Resolves the given options to a `RunSpec`, by an ordered list of rules.

A rule reads and changes a `Draft`.  Whether an option has an effect on a kind of run is not decided
here but stated with the option (`moebench.results.spec.Option.on`).
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError

from moebench.harness.settings import few_shot_count, setting
from moebench.results.spec import DEFAULT_PROMPTS, OPTIONS, WHY, Kind, Routing, RunSpec, kinds
from moebench.substrate.engine.system import System
from moebench.substrate.errors import NotApplicableError, UnknownNameError, UsageError
from moebench.substrate.files import brief_word
from moebench.substrate.machines.profile import DEFAULT_SOFTWARE, check_software, machine_name
from moebench.substrate.models.bits import format_key, format_names
from moebench.substrate.models.catalogue import (
    OWN_BITS,
    find_name,
    is_file,
    model_shape,
    scale_names,
)
from moebench.substrate.models.gguf_shape import is_gguf
from moebench.substrate.models.shape import check_quantises
from moebench.systems.native.base import NativeSystem
from moebench.systems.options import build_any, describe, routing_of
from moebench.systems.registry import NATIVE, name_of, system_class
from moebench.workloads.catalogue import DEFAULT_WORKLOAD, workload
from moebench.workloads.hub import is_hub

if TYPE_CHECKING:
    from moebench.substrate.traces.recordings import Text

#: The software of a package that runs by itself: nothing is charged for it.
NATIVE_SOFTWARE = "native"

#: The system's option that holds α.
ALPHA = "alpha"

#: Two ways to say how many experts the device keeps: either of them replaces the setting's.
SLOTS = ("cache_ratio", "slots")


@dataclass(slots=True)
class Draft:
    """State of a run's options while the rules resolve them.

    Attributes:
        given: what the user gave, without None.
        chosen: the run's fields as far as they are known; rules add to them.
        alpha, paper_alpha: the substitution threshold that was given, and the setting's.
        built: the system, once it is built.
        spec: the result, once all fields are known.
    """

    data_dir: Path | None
    given: Mapping[str, Any]
    chosen: dict[str, Any]
    alpha: float | None = None
    paper_alpha: float | None = None
    built: System | NativeSystem = field(init=False)
    spec: RunSpec = field(init=False)

    @property
    def system(self) -> str:
        """The system's name."""
        return str(self.chosen["system"])

    @property
    def variant(self) -> str:
        """The system's variant."""
        return str(self.chosen.get("variant", "published"))

    @property
    def native(self) -> bool:
        """Whether a third-party package runs by itself."""
        return self.system in NATIVE

    @property
    def local(self) -> bool:
        """Whether the run is measured on this computer."""
        return self.chosen.get("machine") == "local"


def resolve(data_dir: Path | None, **given: Any) -> RunSpec:
    """Resolve the given options to a full spec; None means "not given".

    A setting supplies model, machine, precision, experts on the device and lengths; what was given
    wins.

    Raises UnknownNameError, UsageError: a name or value that cannot be; one line.
    """
    known = {key: value for key, value in given.items() if value is not None}
    draft = Draft(data_dir, known, dict(known))
    for rule in RULES:
        rule(draft)
    return draft.spec


def _shorten_paths(draft: Draft) -> None:
    """Normalise names, so that ``./m.yaml`` and ``m.yaml`` are one machine, and parts too."""
    for key, name in draft.chosen.items():
        if key in OPTIONS and OPTIONS[key].path:
            if not name.strip() or "\0" in name:
                raise UsageError(f"--{key} {name!r}: expected a name or a path")
            if "/" in name or os.sep in name:
                draft.chosen[key] = Path(os.path.normpath(name)).as_posix()
    if "machine" in draft.chosen:
        draft.chosen["machine"] = machine_name(draft.chosen["machine"])


def _find_system(draft: Draft) -> None:
    """Refuse a system or a variant that does not exist."""
    if not draft.native:
        system_class(draft.system, draft.variant)


def _apply_setting(draft: Draft) -> None:
    """Take options that were not given from the setting."""
    draft.alpha = draft.chosen.pop(ALPHA, None)
    if "setting" not in draft.chosen:
        return
    row, chosen = setting(draft.chosen["setting"]), draft.chosen
    fields = {key: value for key, value in row if key in RunSpec.model_fields and value is not None}
    # A local run holds the share of experts that the setting's own machine would.
    if chosen.get("machine", row.machine) not in (row.machine, "local"):
        fields.pop("device_memory_gib", None)  # that of the paper's card, not of another one
    if any(key in chosen for key in SLOTS):
        fields = {key: value for key, value in fields.items() if key not in SLOTS}
    draft.chosen = {**fields, **chosen, "setting": row.name}
    if draft.variant == "published":  # a setting's α is its paper's
        draft.paper_alpha = row.alpha


def _find_calibration(draft: Draft) -> None:
    """Refuse an unknown calibration workload, even if no policy is fitted."""
    if "calibrate_from" in draft.chosen:
        workload(draft.chosen["calibrate_from"])


def _run_packages_here(draft: Draft) -> None:
    """Refuse a simulated machine for a package that runs by itself."""
    if draft.native and not draft.local:
        where = draft.chosen.get("machine", "no machine is named")
        raise UsageError(
            f"--system {draft.system}: a package runs for real, on this computer alone ({where}); "
            "type: --machine local"
        )


def _find_routing(draft: Draft) -> None:
    """Refuse an unknown source of routing."""
    routing = draft.chosen.get("routing", "model")
    if routing not in get_args(Routing):
        raise UsageError(f"--routing {routing}: allowed: {', '.join(get_args(Routing))}")


def _refuse_without_effect(draft: Draft) -> None:
    """Refuse options that have no effect on this kind of run."""
    for kind in kinds(draft.chosen):
        refuse(draft.given, kind)


def refuse(given: Mapping[str, Any], kind: Kind) -> None:
    """Refuse options that have no effect on a kind of run.

    Raises UsageError: the first of them, and why it has none.
    """
    for name, option in OPTIONS.items():
        value = given.get(name)
        # A flag that is off, or the model's own routing, asks for nothing.
        asks = value is not None and value is not False and (name, value) != ("routing", "model")
        if asks and kind not in option.on:
            facts = {"option": option.flag, "name": name, "value": value}
            raise UsageError(WHY[kind].format(**facts, system=given["system"]))


def _choose_software(draft: Draft) -> None:
    """Choose the kind of software; on this computer it is the one that runs."""
    if draft.local:
        if "software" in draft.given:
            raise UsageError(
                f"--software {draft.given['software']} and --machine local: this computer is "
                "measured, with our own engine or a package itself"
            )
        draft.chosen["software"] = NATIVE_SOFTWARE if draft.native else DEFAULT_SOFTWARE
    if not draft.native:
        check_software(draft.chosen.get("software", DEFAULT_SOFTWARE))


def _score_packages_by_tokens(draft: Draft) -> None:
    """Refuse scoring by likelihood for a package, which does not return logits."""
    scoring = draft.chosen.get("scoring")
    if draft.native and scoring in ("likelihood", "prefill"):
        raise UsageError(
            f"--scoring {scoring} and --system {draft.system}: a package is asked for tokens "
            "alone; allowed: fixed-length, generation"
        )


def _one_tier_below(draft: Draft) -> None:
    """Refuse an emulated link together with options of the disk."""
    cache = draft.chosen.get("page_cache")
    if cache is not None and "emulated_link_gb_s" in draft.chosen:
        raise UsageError(
            f"--page-cache {cache} and --emulated-link: experts are in memory then; give one"
        )


def _bound_simulated_machines(draft: Draft) -> None:
    """Refuse the bounds by linear programs on this computer, whose costs no profile has."""
    if draft.chosen.get("clairvoyant") and draft.chosen.get("machine") == "local":
        raise UsageError(
            "--clairvoyant and --machine local: the bounds follow from the costs of a profile; "
            "give another --machine (moebench list machines)"
        )


def _one_count_of_experts(draft: Draft) -> None:
    """Refuse both ``cache_ratio`` and ``slots``."""
    if all(key in draft.chosen for key in SLOTS):
        ratio, slots = (draft.chosen[key] for key in SLOTS)
        raise UsageError(
            f"--capacity {ratio} and --slots {slots}: both say how many experts the device "
            "keeps; give one of them"
        )


def _replay_trace(draft: Draft) -> None:
    """Take model, workload and lengths from the trace."""
    chosen = draft.chosen
    if "trace" not in chosen:
        if chosen.get("reconstruct_scores"):
            raise UsageError("--reconstruct-scores: a trace's scores are meant; give --trace DIR")
        return
    if "routing" in chosen:
        raise UsageError(f"--routing {chosen['routing']} and --trace: give one of them")
    from moebench.substrate.traces.catalogue import find_trace
    from moebench.substrate.traces.file import open_trace

    trace = open_trace(find_trace(chosen["trace"]))
    longest = max(map(trace.passes, range(len(trace.sequences))))
    wanted = _as_much_as(draft, chosen["trace"], len(trace.sequences), longest)
    header = trace.header
    draft.chosen = {"model": header.model, **chosen, "workload": header.workload, **wanted}


def _model_of_weights(draft: Draft) -> None:
    """Charge the given checkpoint's own shape if no model is given."""
    if "weights" in draft.chosen:
        path = Path(draft.chosen["weights"]) / "config.json"
        draft.chosen.setdefault("model", path.as_posix())


def _need_model_and_machine(draft: Draft) -> None:
    """Refuse a run without a model or a machine, and give a model its name in the catalogue."""
    for key, hint in (("model", "--model NAME"), ("machine", "--machine NAME")):
        if key not in draft.chosen:
            raise UsageError(f"no {key}: give --setting NAME or {hint}")
    model = draft.chosen["model"]
    if not is_file(model):
        draft.chosen["model"] = find_name(model)


def _choose_bits(draft: Draft) -> None:
    """Charge the bits of a GGUF format, or those of the GGUF file that is the model."""
    chosen, given = draft.chosen, draft.given
    own = is_gguf(chosen["model"])
    others = [name for name in ("precision", "expert_dtype") if name in given]
    if "quant" not in chosen:
        if own and not (others or draft.local or draft.native):
            chosen["quant"] = OWN_BITS
        return
    quant = format_key(chosen["quant"])
    if others:
        raise UsageError(
            f"--quant {quant} and {OPTIONS[others[0]].flag} {given[others[0]]}: both say in how "
            "many bits weights are stored; give one of them"
        )
    if draft.local:
        raise UsageError(
            f"--quant {quant} and --machine local: this computer has no kernels of GGUF formats; "
            "give --expert-dtype int8 or int4, or another --machine"
        )
    if quant != OWN_BITS and quant not in format_names():
        hint = "or give the file itself: --model FILE.gguf"
        raise UnknownNameError("format of --quant", quant, format_names(), hint)
    if quant == OWN_BITS and not own:
        raise UsageError(
            f"--quant {quant}: {chosen['model']} is no GGUF file; give --model FILE.gguf, or a "
            "format such as q4_k_m"
        )
    chosen["quant"] = quant


def _draw_without_scale_model(draft: Draft) -> None:
    """Draw the routing of a model that has no scale model, unless an option needs a live run."""
    chosen = draft.chosen
    if {"routing", "trace", "weights", "setting"} & chosen.keys() or draft.native:
        return
    live = any("drawn" not in OPTIONS[name].on for name, value in draft.given.items()
               if value is not False)  # fmt: skip
    if not live and chosen["model"] not in scale_names():
        chosen["routing"] = "drawn"


def _replay_recordings(draft: Draft) -> None:
    """Take workload and lengths from recordings of the real model."""
    if draft.chosen.get("routing") != "real":
        return
    from moebench.substrate.traces.recordings import replayable, workload_of

    model = draft.chosen["model"]
    new_tokens = draft.chosen.setdefault("new_tokens", OPTIONS["new_tokens"].default)
    texts = recorded_texts(model, max(1, new_tokens), draft.data_dir)
    longest = max(text.passes for text in texts)
    wanted = _as_much_as(draft, f"recordings of {model}", replayable(texts), longest)
    draft.chosen |= {"workload": workload_of(texts), **wanted}


def recorded_texts(model: str, new_tokens: int, data_dir: Path | None) -> "list[Text]":
    """Return the recorded texts of a model with at least ``new_tokens`` decoded tokens.

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


def _as_much_as(draft: Draft, what: str, sequences: int, longest: int) -> dict[str, Any]:
    """Limit the number of prompts and new tokens of a replay to what the trace holds.

    Args:
        what: is replayed.
        longest: passes of its longest sequence.
    """
    chosen, given = draft.chosen, draft.given
    batch = chosen.get("batch", 1)
    whole = max(1, batch) * (sequences // max(1, batch))
    for key, has, unit in (("prompts", whole, "prompts"), ("new_tokens", longest, "new tokens")):
        if given.get(key, 0) > has:
            raise UsageError(f"{OPTIONS[key].flag} {given[key]}: {what} holds {has} {unit}")
    if not whole:
        raise UsageError(f"--batch {batch}: {what} holds {sequences} prompts")
    return {
        "prompts": given.get("prompts", whole),
        "new_tokens": min(chosen.get("new_tokens", longest), longest),
    }


def _choose_workload(draft: Draft) -> None:
    """Choose the default workload if none is given."""
    draft.chosen.setdefault("workload", DEFAULT_WORKLOAD)


def _length_of_answers(draft: Draft) -> None:
    """Let a scored answer be as long as its workload allows."""
    scored = draft.chosen.get("scoring", "fixed-length") != "fixed-length"
    if scored and "new_tokens" not in draft.given:
        draft.chosen["new_tokens"] = workload(draft.chosen["workload"]).max_new_tokens


def _count_examples(draft: Draft) -> None:
    """Choose the number of worked examples; ``paper`` means the setting's number."""
    chosen = draft.chosen
    asked = str(chosen.get("few_shot", "0"))
    chosen["few_shot"] = few_shot_count(asked, chosen["workload"], chosen.get("setting"))


def _set_alpha(draft: Draft) -> None:
    """Set the system's α from the option or the setting; `--set` has precedence."""
    overrides = draft.chosen.get("overrides", {})
    if draft.native:
        return
    route = routing_of(draft.system, overrides, draft.variant)
    if not route.has_alpha:
        if draft.alpha is not None:
            name = name_of("route", route)
            raise UsageError(f"--alpha: {draft.system} with route={name} has no α; smoe has one")
        return
    if draft.alpha is not None and ALPHA in overrides:
        raise UsageError(
            f"--alpha {draft.alpha:g} and --set {ALPHA}={overrides[ALPHA]}: give one of them"
        )
    alpha = draft.paper_alpha if draft.alpha is None else draft.alpha
    if alpha is not None:
        draft.chosen["overrides"] = {ALPHA: f"{alpha:.12g}", **overrides}


def _build(draft: Draft) -> None:
    """Build the system and normalise its options, so that 0.30 and 0.3 are one run."""
    overrides = draft.chosen.get("overrides", {})
    draft.built = build_any(draft.system, overrides, draft.variant)
    spelled = describe(draft.built)
    draft.chosen["overrides"] = {key: spelled[key] for key in overrides}


def _fill_batches(draft: Draft) -> None:
    """Round the default number of prompts up to whole batches."""
    batch = draft.chosen.get("batch", 1)
    if isinstance(batch, int) and batch > 0:
        draft.chosen.setdefault("prompts", -(-DEFAULT_PROMPTS // batch) * batch)


def _check_values(draft: Draft) -> None:
    """Refuse values out of range and build the spec."""
    try:
        draft.spec = RunSpec(**draft.chosen)
    except ValidationError as error:
        detail = error.errors()[0]
        name = str(detail["loc"][0])
        flag = OPTIONS[name].flag if name in OPTIONS else f"--{name.replace('_', '-')}"
        raise UsageError(f"{flag} {brief_word(detail['input'])}: {detail['msg']}") from error


def _check_context(draft: Draft) -> None:
    """Refuse cached tokens before the prompt where a model computes: it has not read them."""
    spec = draft.spec
    if spec.context and not spec.replays:
        raise UsageError(
            f"--context {spec.context}: a model that computes would have to read these tokens "
            "first; allowed with --routing replayed, drawn or real, or with --trace"
        )


def _check_sampling(draft: Draft) -> None:
    """Refuse top-p without a temperature, and a temperature where no token is drawn."""
    spec = draft.spec
    if spec.top_p < 1 and not spec.temperature:
        raise UsageError(
            f"--top-p {spec.top_p:g}: temperature 0 takes the likeliest token; give --temperature, "
            "above 0"
        )
    if spec.temperature and spec.scoring in ("likelihood", "prefill"):
        raise UsageError(
            f"--temperature {spec.temperature:g} and --scoring {spec.scoring}: options are fed, no "
            "token is drawn; allowed: fixed-length, generation"
        )


def _check_batches(draft: Draft) -> None:
    """Refuse a number of prompts that is not a multiple of the batch size."""
    spec = draft.spec
    if spec.prompts % spec.batch:
        raise UsageError(
            f"--prompts {spec.prompts} does not fill batches of {spec.batch}; allowed: multiples "
            f"of {spec.batch}"
        )


def _check_model(draft: Draft) -> None:
    """Refuse a model or batch size that the system does not support."""
    spec = draft.spec
    shape = model_shape(spec.model)
    if spec.expert_dtype is not None:
        check_quantises(shape, spec.expert_dtype)
    reason = draft.built.why_not(shape, spec.batch)
    if reason is not None:
        raise NotApplicableError(f"{spec.title} with {spec.model}: {reason}")


#: In this order.
RULES: tuple[Callable[[Draft], None], ...] = (
    _shorten_paths, _find_system, _apply_setting, _find_calibration,
    _run_packages_here, _find_routing, _refuse_without_effect, _choose_software,
    _score_packages_by_tokens, _one_tier_below, _bound_simulated_machines, _one_count_of_experts,
    _replay_trace, _model_of_weights, _need_model_and_machine, _choose_bits,
    _draw_without_scale_model, _replay_recordings,
    _choose_workload, _length_of_answers, _count_examples,
    _set_alpha, _build, _fill_batches, _check_values, _check_context, _check_batches,
    _check_sampling, _check_model,
)  # fmt: skip
