"""The base class of systems: six decisions, and the options of its transfers."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

import numpy as np

from moebench.substrate.choices import HostKernels
from moebench.substrate.engine.decisions import LayerView, Prompts
from moebench.substrate.engine.options import check_options, option
from moebench.substrate.engine.policies import (
    Admission,
    Assignment,
    Eviction,
    Placement,
    Policy,
    Predictor,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.runtime import Runtime, check_forms
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.models.shape import Form, ModelShape, Precision
from moebench.substrate.terms import Lookahead


@dataclass(kw_only=True)
class AdmitAll(Admission):
    """Keeps every expert that a layer loads, and uploads none that the host computed."""


@dataclass(kw_only=True)
class System:
    """Base of systems: six decisions.  A paper's system is a subclass with its own defaults.

    Attributes:
        scope: one pool of slots for all layers, or one for each layer.
        alpha: how far routing may go from the model's own choice (SMoE's α), where it has an α.
        all_resident: everything must fit on the device: no offloading, for comparison.
        overlap, blocking_copies, parallel_reads, synchronises, reads_unfinished, pinned_copies,
            expert_precision, host_experts, module_hooks, host_kernels, prediction_python,
            host_together: see
            `Runtime`.
        in_flight: what is done with experts that are on their way to the device when their layer's
            gate is known: the device waits for them, unless the assignment decides otherwise, or
            the host computes those that end sooner there (`substrate.engine.in_flight`).
    """

    #: The publication, as it is cited in a table; the module's docstring has the reference.
    paper: ClassVar[str] = ""
    #: The largest batch for which the system is defined; None is any.
    max_batch: ClassVar[int | None] = None
    #: Files and folders that the system or its policies read, relative to its module's file or
    #: absolute: their content is part of a run's id, so that a run is computed again if it changes.
    sources: ClassVar[tuple[str, ...]] = ()
    #: The forms in which expert records are held, best first; `Fetch.form` is an index into them.
    forms: ClassVar[tuple[Form, ...]] = (Form(),)

    place: Placement
    route: Routing
    assign: Assignment
    prefetch: Prefetching
    admit: Admission = field(default_factory=AdmitAll)
    evict: Eviction
    scope: Scope = option("global", searched=True)
    # SMoE uses an α of 0 to 0.6.
    alpha: float = option(0.25, low=0, high=1, searched=(0, 0.6))
    all_resident: bool = False
    overlap: bool = True
    blocking_copies: bool | None = None
    parallel_reads: bool = True
    synchronises: bool = False
    reads_unfinished: bool = False
    pinned_copies: bool | None = None
    expert_precision: Precision | None = None
    host_experts: int | None = option(None, low=2, needs=("disk",))
    module_hooks: bool = False
    host_kernels: HostKernels = "unpacking"
    prediction_python: bool = True
    host_together: bool = False
    in_flight: Literal["wait", "host"] = option("wait", searched=True)

    def __post_init__(self) -> None:
        """Check options that no policy checks."""
        check_options(self)
        if self.place.needs_host and not self.assign.uses_host:
            raise UsageError(
                f"place is {type(self.place).__name__}, which leaves experts to the host, but "
                f"assign is {type(self.assign).__name__}, which computes none there; allowed: a "
                "system that computes misses on the host, or --set assign=host"
            )
        one_each = bool(self.place.own_forms)
        if one_each:
            if len(self.forms) > 1:
                raise UsageError(
                    f"place is {type(self.place).__name__}, which chooses one form for each "
                    f"expert, but {type(self).__name__} has {len(self.forms)} of each; allowed: "
                    "another placement"
                )
            self.forms = tuple(self.place.own_forms)  # type: ignore[misc]
        check_forms(self.forms, one_each)
        if self.divides and len(self.forms) > 1:
            raise UsageError(
                f"assign is {type(self.assign).__name__}, which divides passes and copies whole "
                f"records in pages, but there are {len(self.forms)} forms of records; allowed: "
                "another assignment, or a system and a placement with one form"
            )
        if len(self.forms) > 1 and not (one_each or self.evict.takes_forms):
            raise UsageError(
                f"evict is {type(self.evict).__name__}, which knows one form of records, but "
                f"{type(self).__name__} has {len(self.forms)}; allowed: a policy with "
                "takes_forms = True, such as --set evict=lru"
            )

    def why_not(self, shape: ModelShape, batch: int) -> str | None:
        """Return why the system does not exist for a model or a batch size; None if it does."""
        if self.max_batch is not None and batch > self.max_batch:
            return f"defined for {self.max_batch} sequence(s) at once, not {batch}"
        return None

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return notes for the run's document, given how many experts the device holds."""
        return ()

    @property
    def threads(self) -> int | None:
        """Threads of the host, an option of systems whose code has one; None is one per core."""
        return None

    @property
    def runtime(self) -> Runtime:
        """The `Runtime` value made of the system's attributes of the same names."""
        return Runtime(**{one.name: getattr(self, one.name) for one in fields(Runtime)})

    @property
    def policies(self) -> dict[str, Policy]:
        """The decisions by name, in the order in which the engine calls them."""
        return {
            "place": self.place, "route": self.route, "assign": self.assign,
            "prefetch": self.prefetch, "admit": self.admit, "evict": self.evict,
        }  # fmt: skip

    @property
    def has_alpha(self) -> bool:
        """Whether the routing has an α."""
        return self.route.has_alpha

    @property
    def alpha_in_use(self) -> float:
        """The value of α that routing uses, or 0 if the routing has no α."""
        return self.alpha if self.has_alpha else 0.0

    @property
    def lossless(self) -> bool:
        """Whether the tokens are those of the model with all weights resident."""
        own = self.route.lossless_at(self.alpha) and self.assign.lossless
        return own and not self.reads_unfinished and all(form.full for form in self.forms)

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return how many experts the system keeps on the device at most; None is all that fit."""
        return None

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that the system's policies need in addition to slots."""
        return sum(policy.device_bytes for policy in self.policies.values())

    @property
    def reserve(self) -> int:
        """Slots that placement must leave empty; known once the policies have started."""
        return sum(policy.reserve for policy in self.policies.values())

    @property
    def predictors(self) -> list[Predictor]:
        """The distinct predictors of routing and prefetching."""
        found = [self.route.predictor, self.prefetch.predictor]
        return list(dict.fromkeys(p for p in found if p is not None))

    @property
    def lookaheads(self) -> dict[Lookahead, int]:
        """Kinds of prediction that its predictors need, and for how many following MoE layers."""
        found: dict[Lookahead, int] = {}
        for predictor in self.predictors:
            kind = predictor.lookahead
            if kind is not Lookahead.NONE:
                found[kind] = max(found.get(kind, 0), predictor.layers)
        return found

    @property
    def reads_hidden(self) -> bool:
        """Whether a policy reads the hidden states that gates read."""
        return any(policy.reads_hidden for policy in self.policies.values())

    @property
    def reads_embedding(self) -> bool:
        """Whether a policy reads the prompts' embeddings."""
        return any(policy.reads_embedding for policy in self.policies.values())

    @property
    def reads_token_norms(self) -> bool:
        """Whether a policy reads the norms of the states that gates read."""
        return any(policy.reads_token_norms for policy in self.policies.values())

    @property
    def reads_token_embeddings(self) -> bool:
        """Whether a policy reads the embeddings of a pass's tokens."""
        return any(policy.reads_token_embeddings for policy in self.policies.values())

    @property
    def reads_weight_norms(self) -> bool:
        """Whether a policy reads the norms of experts' weights."""
        return any(policy.reads_weight_norms for policy in self.policies.values())

    @property
    def divides(self) -> bool:
        """Whether decode passes are divided into micro-batches; see `Assignment.divides`."""
        return self.assign.divides

    @property
    def clairvoyant(self) -> bool:
        """Whether the system must know future routing, which only a replay has."""
        return self.evict.clairvoyant or Lookahead.EXACT in self.lookaheads

    def weight_norms(self, norms_LE: np.ndarray) -> None:
        """Pass the norms of experts' weights to the policies that read them."""
        for policy in self.policies.values():
            if policy.reads_weight_norms:
                policy.weight_norms(norms_LE)

    def full_size(self, shape: ModelShape) -> None:
        """Pass the shape of the model that is charged to every policy."""
        for policy in self.policies.values():
            policy.full_size(shape)

    def expect(self, prompt_tokens: int, texts: int = 1) -> None:
        """Pass the most tokens of a batch's prompts to every policy; see `Policy.expect`."""
        for policy in self.policies.values():
            policy.expect(prompt_tokens, texts)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Call `Policy.start` of every policy when a run begins."""
        for policy in self.policies.values():
            policy.start(shape, cache)
        # Most policies leave `observe` empty; calling only the others keeps the inner loop short.
        watches = Policy.observe
        self._observers = [p for p in self.policies.values() if type(p).observe is not watches]

    def begin_sequences(self, prompts: Prompts) -> None:
        """Call `Policy.begin_sequences` of every policy when a batch begins."""
        for policy in self.policies.values():
            policy.begin_sequences(prompts)

    def end_sequences(self) -> None:
        """Call `Policy.end_sequences` of every policy when a batch has ended."""
        for policy in self.policies.values():
            policy.end_sequences()

    def observe(self, view: LayerView) -> None:
        """Call `Policy.observe` of every policy that overrides it, with a layer's view."""
        for policy in self._observers:
            policy.observe(view)
