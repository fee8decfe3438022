"""The five decisions and the predictor that two of them may share, as classes to derive from.

The engine asks them at fixed moments of a token's way through a layer.  A policy is a dataclass:
its fields are its options, its state is made in `start`.  Policies name actions and never price or
perform them.

    place     before the first token: what is on the device when a run starts
    route     the gate's scores are known: which experts the tokens use
    assign    which of these the device computes and which the host; what is loaded, in which order
    prefetch  the layer's own loads are queued: what to fetch for later layers
    evict     a transfer needs a slot: which expert to evict
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from moebench.substrate.engine.decisions import (
    Active,
    Fetch,
    Forecast,
    LayerView,
    Plan,
    Prompts,
    Routed,
)
from moebench.substrate.machines.protocol import Lane, Op
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.memory.capacity import Budget, Home
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Learnt, Lookahead, Phase, RoutedSequence


class Policy(ABC):
    """A decision.  Subclasses are dataclasses whose fields are their options."""

    #: Whether it looks at `LayerView.hidden_TH`, or at `Prompts.embedding_BH`.
    reads_hidden: ClassVar[bool] = False
    reads_embedding: ClassVar[bool] = False
    #: Whether the policy learns from recorded routing: `calibrate` then comes before `start`.
    calibrates: ClassVar[bool] = False
    #: What `calibrate` reads of a sequence beside ``ids_TLK`` and ``prefill``: ``scores_TLE``,
    #: ``hidden_TLH``, ``embedding_H``, ``predicted_TLE`` or ``sensitivity_L``, which a recorded one
    #: lacks.  What nobody asks for is neither kept nor given.
    learns_from: ClassVar[frozenset[Learnt]] = frozenset()
    #: How many texts it is shown unless the user says it: its paper's number.  16 is ours, for
    #: papers that name none.
    calibration_texts: ClassVar[int] = 16
    #: A trace that it learns from, its folder or the name of one that ships; "" leaves the choice.
    calibration_trace: str = ""
    #: Slots that placement must leave empty for it, known from `start` on.
    reserve: int = 0
    #: Options with which it learns in moments, as ``--set`` takes them: for checks of what it does,
    #: not for how well.
    quick: ClassVar[Mapping[str, str]] = {}

    @property
    def reads_scores(self) -> bool:
        """Whether it looks at gate scores, which not every trace holds."""
        return type(self).observe is not Policy.observe

    @property
    def device_bytes(self) -> int:
        """Device memory that it needs for itself, beside slots."""
        return 0

    @property
    def learnt(self) -> Mapping[str, str]:
        """How `calibrate` went, for the run's provenance: epochs, loss, what it learnt from.

        A ``note`` is what every reader of the run's figures must know of it.
        """
        return {}

    def calibrate(
        self,
        sequences: Sequence[RoutedSequence],
        shape: ModelShape,
        artefacts: Path,
        progress: Callable[[int, int], None],
    ) -> None:
        """Learn from how other texts than the run's own were routed.

        Args:
            sequences: with all that it ``learns_from``.  H is theirs, not ``shape``'s: ``shape`` is
                the model that is charged, and a scale model may have computed.
            artefacts: a folder in which what was learnt may be kept, by the hash of all it is from.
            progress: told of steps done and to do.
        """

    def full_size(self, shape: ModelShape) -> None:
        """Learn the model whose bytes are charged, before `start`.

        What computes, and is all that `start` and views know, may be smaller.
        """

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Make fresh state for a run."""

    def begin_sequences(self, prompts: Prompts) -> None:
        """A batch begins: the sequences of a batch begin and end together."""

    def end_sequences(self) -> None:
        """The batch has ended."""

    def observe(self, view: LayerView) -> None:
        """A layer's gate is known (called for every layer of every pass, before `Routing`)."""


class Predictor(ABC):
    """Expects which experts later layers will use.  Of equal ones, one is asked in a layer."""

    #: Where it runs: on the device among its operations, beside it, or on the host.
    lane: ClassVar[Lane] = Lane.DEVICE
    #: What it asks of the model, and a trace must therefore have recorded.
    lookahead: ClassVar[Lookahead] = Lookahead.NONE
    #: Of how many of the MoE layers that follow it asks the model.
    layers: int = 1
    #: Whether it is asked in prefill too.
    in_prefill: ClassVar[bool] = False
    #: Whether it is asked in a pass's last MoE layer too, where it can speak of the next pass.
    wraps: ClassVar[bool] = False
    #: Whether the control thread goes on without it.  Speculative fetches that were not asked for
    #: before then begin once it has been made; whoever needs it at once waits for it all the same.
    in_background: ClassVar[bool] = False

    def asked(self, view: LayerView) -> bool:
        """Whether it predicts from this layer."""
        return view.phase == "decode" or self.in_prefill

    @abstractmethod
    def op(self, view: LayerView) -> Op:
        """What a prediction costs: a ``PREDICT`` operation with its sizes."""

    @abstractmethod
    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """What it expects of later layers; of this one and those before it, in the next pass.

        Args:
            done: active experts of this layer that have been computed by then.
        """


class Placement(Policy):
    """Places experts before the first token."""

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """Where each layer's common weights are; one home more is the head's."""
        on_device: Home = "device"
        return (on_device,) * shape.num_layers

    def slots(self, shape: ModelShape, slots: int) -> Sequence[int] | None:
        """How many of the slots each MoE layer has; None shares them as the system's scope says."""
        return None

    @abstractmethod
    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """At most ``slots`` pairs (layer, expert) to hold when the run starts."""

    def keep_on_host(self, shape: ModelShape, records: int) -> Iterable[tuple[int, int]]:
        """At most so many pairs that host memory holds for good, where not all experts fit there.

        The others are on the disk; what passes through host memory is kept as a cache does.
        """
        return ()

    def after_prefill(self) -> Sequence[Fetch]:
        """Experts to exchange between a batch's prefill and its decode."""
        return ()


class Routing(Policy):
    """Chooses the experts that the tokens use."""

    #: Unless a subclass says that it does not.
    reads_scores = True
    #: Whether it goes as far as the system's α.
    has_alpha: ClassVar[bool] = False

    def lossless_at(self, alpha: float) -> bool:
        """Whether the experts, at the system's α, are always the model's own."""
        return True

    @property
    def predictor(self) -> Predictor | None:
        """What layers are routed ahead by."""
        return None

    def routes_ahead(self, layer: int) -> bool:
        """Whether this layer is routed while the one before it is computed (decode only)."""
        return False

    def route(self, view: LayerView) -> Routed:
        """Choose; the default is the model's own top-k."""
        return Routed(view.topk_ids_TK, view.topk_ids_TK)


class Assignment(Policy):
    """Divides a layer's active experts between the device and the host."""

    reads_scores = True
    #: Whether it ever computes on the host.
    uses_host: bool = False
    #: Whether outputs are always added in their own layer.
    lossless: ClassVar[bool] = True

    def whole_layers(self, shape: ModelShape) -> bool:
        """Whether a layer's experts are one module, of which all are brought or none."""
        return False

    def host_copies(self, rows: int) -> int:
        """How often common weights on the host are copied to the device, in a pass of these rows.

        0 leaves their work to the host.  The placement must leave room for one layer's.
        """
        return 0

    @abstractmethod
    def assign(self, view: LayerView, active: Active) -> Plan:
        """What happens to each of the active experts.

        Of a layer that is routed ahead it is asked twice: when it is routed, to begin host
        computations and loads early, and at the layer's own turn for what the host has not got.
        """

    def waited(self, view: LayerView, plan: Plan, host_ns: int, load_ns: int) -> None:
        """The control thread has waited for the host and for all transfers of a layer.

        Told where the system ``synchronises``: when the host's last output was back, and when the
        last of the plan's loads was complete; 0 where there was none.
        """


class Prefetching(Policy):
    """Selects experts to fetch for later layers."""

    reads_scores = True
    #: How its transfers go.  ``speculative``: behind everything needed; what has not begun is
    #: dropped when its layer's gate is known, and asking again replaces what is queued.
    #: ``committed``: first in, first out with needed loads; each waits for a slot that the current
    #: layer frees, and none is dropped.
    discipline: ClassVar[Literal["speculative", "committed"]] = "speculative"
    #: In how many chunks a speculative transfer goes: between them, needed loads go first.
    chunks: int = 1

    @property
    def predictor(self) -> Predictor | None:
        """What `prefetch` is told of later layers."""
        return None

    def opening(self, phase: Phase, layer: int) -> Sequence[Fetch]:
        """Fetches at the beginning of a pass, whose first MoE layer is ``layer``.

        In decode, none leaves what was asked for in the pass before.
        """
        return ()

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Fetches in the order to make them; what is on the device already is skipped.

        Asked where there is a next layer with experts, and where a predictor that ``wraps`` has
        spoken of the next pass.  ``forecast`` is empty where nothing was predicted.
        """
        return ()


class Eviction(Policy):
    """Chooses the expert to evict."""

    #: So many slots are for experts that are not kept: where all others are taken, an expert that
    #: is kept replaces another even if these are free.  Where layers share slots.
    transient: int = 0
    #: Whether an evicted expert's weights are copied back to the host before its slot is reused.
    writes_back: bool = False
    #: Whether it must know the future, which a replay alone can tell it before `start`.
    clairvoyant: ClassVar[bool] = False

    def set_future(
        self, steps: Sequence[tuple[int, Sequence[int]]], may_refuse: bool = False
    ) -> None:
        """Learn all steps to come: a layer and the experts that it uses.

        Args:
            may_refuse: whether a requested expert can do without a slot (where only hits count).
        """

    def foresee(self, forecast: Forecast) -> None:
        """What a predictor expects, as soon as the control thread has read it, or goes on."""

    def placed(self, key: int) -> None:
        """An expert was given a slot by placement."""
        self.arrived(key)

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """A layer uses these experts, wherever they were.

        Where records have several forms, ``layer`` is ``form · layers + layer``, as in keys, and
        each form is told of its own.
        """

    def arrived(self, key: int) -> None:
        """An expert was given a slot by a transfer."""

    def left(self, key: int) -> None:
        """An expert lost its slot."""

    def grows(self, incoming: int) -> bool:
        """Whether an expert may take a free slot; otherwise one leaves for it, if any can."""
        return True

    @abstractmethod
    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """One of the allowed keys, or None: to refuse, or because none is allowed."""
