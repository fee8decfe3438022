"""A system: five decisions under a name, and how its transfers go."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from moebench.substrate.engine.decisions import LayerView, Prompts
from moebench.substrate.engine.policies import (
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
class System:
    """Five decisions under a name.  A paper's system is a subclass with its own defaults.

    Attributes:
        scope: one pool of slots for all layers, or one for each layer.
        alpha: how far routing may go from the model's own choice (SMoE's α), where it has an α.
        all_resident: everything must fit on the device: no offloading, for comparison.
        overlap: False lets no operation start before the one submitted before it has ended.
        blocking_copies: the control thread waits for every needed load, and for every layer's
            common weights that are streamed.
        parallel_reads: experts on the disk are read beside each other; otherwise one at a time.
        synchronises: the control thread waits for the host's outputs and for a layer's transfers
            before it launches what these bring, and for the layer's sum before it goes on.
        reads_unfinished: an expert whose transfer is under way is computed without waiting for it,
            on whatever its slot holds.  The results of such a system are wrong; its time is not.
        pinned_copies: whether experts are copied from pinned host memory; None is as the machine's
            profile says.
        expert_precision: what routed experts are stored and moved at; None is the run's precision.
        host_experts: how many routed experts host memory keeps, the others are on the disk; None
            is all that fit.
        module_hooks: every tensor that is not on the device is brought by itself, by its module's
            hook: a copy each, and the hook's Python.
    """

    #: Where it is published, as it is cited in a table; its file's docstring says more.
    paper: ClassVar[str] = ""
    #: The most sequences at once that it is defined for; None is any number.
    max_batch: ClassVar[int | None] = None
    #: The forms in which it holds expert records, best first; `Fetch.form` is an index into them.
    forms: ClassVar[tuple[Form, ...]] = (Form(),)

    place: Placement
    route: Routing
    assign: Assignment
    prefetch: Prefetching
    evict: Eviction
    scope: Scope = "global"
    alpha: float = 0.25
    all_resident: bool = False
    overlap: bool = True
    blocking_copies: bool = False
    parallel_reads: bool = True
    synchronises: bool = False
    reads_unfinished: bool = False
    pinned_copies: bool | None = None
    expert_precision: Precision | None = None
    host_experts: int | None = None
    module_hooks: bool = False

    def __post_init__(self) -> None:
        """Check options that no policy checks."""
        if not 0 <= self.alpha <= 1:
            raise UsageError(f"alpha is {self.alpha}; allowed: 0 to 1 (SMoE uses 0 to 0.6)")
        if self.host_experts is not None and self.host_experts < 2:
            raise UsageError(f"host_experts is {self.host_experts}; allowed: 2 or more")
        check_forms(self.forms)

    def why_not(self, shape: ModelShape, batch: int) -> str | None:
        """Why it does not exist for a model or a batch, in a few words; None if it does."""
        if self.max_batch is not None and batch > self.max_batch:
            return f"defined for {self.max_batch} sequence(s) at once, not {batch}"
        return None

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """What every reader of its figures must know, given how many experts the device holds."""
        return ()

    @property
    def runtime(self) -> Runtime:
        """How its transfers and computations are carried out: its attributes of these names."""
        return Runtime(**{one.name: getattr(self, one.name) for one in fields(Runtime)})

    @property
    def policies(self) -> dict[str, Policy]:
        """The decisions by name, in the order in which they are asked."""
        return {
            "place": self.place,
            "route": self.route,
            "assign": self.assign,
            "prefetch": self.prefetch,
            "evict": self.evict,
        }

    @property
    def has_alpha(self) -> bool:
        """Whether the routing has an α."""
        return self.route.has_alpha

    @property
    def alpha_in_use(self) -> float:
        """α, or 0 where the routing has none."""
        return self.alpha if self.has_alpha else 0.0

    @property
    def lossless(self) -> bool:
        """Whether the tokens are those of the model with everything resident."""
        own = self.route.lossless_at(self.alpha) and self.assign.lossless
        return own and all(form.full for form in self.forms)

    def most_slots(self, shape: ModelShape) -> int | None:
        """How many experts it keeps on the device at most; None takes all that fit."""
        return None

    @property
    def device_bytes(self) -> int:
        """Device memory that its policies need for themselves."""
        return sum(policy.device_bytes for policy in self.policies.values())

    @property
    def reserve(self) -> int:
        """Slots that placement must leave empty, once it has started."""
        return sum(policy.reserve for policy in self.policies.values())

    @property
    def predictors(self) -> list[Predictor]:
        """What predicts later layers: of two equal ones, one."""
        found = [self.route.predictor, self.prefetch.predictor]
        return list(dict.fromkeys(p for p in found if p is not None))

    @property
    def lookaheads(self) -> dict[Lookahead, int]:
        """What its predictors ask of the model, and of how many of the MoE layers that follow."""
        found: dict[Lookahead, int] = {}
        for predictor in self.predictors:
            kind = predictor.lookahead
            if kind is not Lookahead.NONE:
                found[kind] = max(found.get(kind, 0), predictor.layers)
        return found

    @property
    def reads_hidden(self) -> bool:
        """Whether a policy looks at the states that gates read."""
        return any(policy.reads_hidden for policy in self.policies.values())

    @property
    def reads_embedding(self) -> bool:
        """Whether a policy looks at the prompts' embeddings."""
        return any(policy.reads_embedding for policy in self.policies.values())

    @property
    def clairvoyant(self) -> bool:
        """Whether it must know routing that is still to come, which a replay alone can tell it."""
        return self.evict.clairvoyant or Lookahead.EXACT in self.lookaheads

    def full_size(self, shape: ModelShape) -> None:
        """Tell every policy which model is charged."""
        for policy in self.policies.values():
            policy.full_size(shape)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin a run."""
        for policy in self.policies.values():
            policy.start(shape, cache)
        # Most policies do not watch; asking only those that do keeps the inner loop short.
        watches = Policy.observe
        self._observers = [p for p in self.policies.values() if type(p).observe is not watches]

    def begin_sequences(self, prompts: Prompts) -> None:
        """Tell every policy that a batch begins."""
        for policy in self.policies.values():
            policy.begin_sequences(prompts)

    def end_sequences(self) -> None:
        """Tell every policy that the batch has ended."""
        for policy in self.policies.values():
            policy.end_sequences()

    def observe(self, view: LayerView) -> None:
        """Show a layer's gate to every policy that watches."""
        for policy in self._observers:
            policy.observe(view)
