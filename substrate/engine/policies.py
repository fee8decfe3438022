"""Base classes of the six decisions, and of the predictor that two of them may share.

The engine calls them at fixed moments of a token's way through a layer.  A policy is a dataclass:
its fields are its options, its state is made in `start`.  Policies name actions and never price or
perform them.

    place     before the first token: what is on the device when a run starts
    route     the gate's scores are known: which experts the tokens use
    assign    which of these the device computes and which the host; what is loaded, in which order
    prefetch  the layer's own loads are queued: what to fetch for later layers
    admit     an expert was missing: whether it enters the cache, and without waiting for its copy
    evict     a transfer needs a slot: which expert to evict
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from moebench.substrate.engine.decisions import (
    Active,
    Fetch,
    Forecast,
    ForwardPass,
    LayerView,
    Plan,
    Prompts,
    Routed,
)
from moebench.substrate.engine.options import check_options
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, Op
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.memory.capacity import Budget, Home
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import Form, ModelShape
from moebench.substrate.terms import Ids, Learnt, Lookahead, Losses, Phase, Purpose, RoutedSequence


class Policy(ABC):
    """Base of all decisions.  Subclasses are dataclasses whose fields are their options."""

    #: The decision, as ``--set`` names it.
    decision: ClassVar[str] = ""
    #: Whether the policy reads `LayerView.hidden_TH`, and `Prompts.embedding_BH`.
    reads_hidden: ClassVar[bool] = False
    reads_embedding: ClassVar[bool] = False
    #: Whether the policy reads the embeddings of a pass's tokens (`Routing.plan_pass`), which no
    #: replay has.
    reads_token_embeddings: ClassVar[bool] = False
    #: Whether the policy reads `LayerView.norm_T`, the norms of the states that gates read.
    reads_token_norms: ClassVar[bool] = False
    #: Whether the policy reads the norms of experts' weights: `weight_norms` is then called before
    #: `start`.  A replay has none and refuses the policy; with the option ``without_weight_norms``,
    #: as of ``--set``, it reads none.
    reads_weight_norms: ClassVar[bool] = False
    without_weight_norms: ClassVar[str] = ""
    #: Whether the policy learns from recorded routing: `calibrate` is then called before `start`.
    calibrates: ClassVar[bool] = False
    #: Fields of a sequence that `calibrate` reads in addition to ``ids_TLK`` and ``prefill``:
    #: ``scores_TLE``, ``hidden_TLH``, ``embedding_H``, ``embedding_TH``, ``predicted_TLE`` or
    #: ``sensitivity_L``; no trace has embeddings of tokens, or sensitivities.  Fields that no
    #: policy reads are not recorded.  With ``loss``, `measure` is called, which needs a computing
    #: model, too.
    learns_from: ClassVar[frozenset[Learnt]] = frozenset()
    #: An option and its value with which it measures no losses; "" if there is none.
    without_losses: ClassVar[str] = ""
    #: Default number of texts to learn from: the paper's number, or 16 if the paper names none.
    calibration_texts: ClassVar[int] = 16
    #: Whether `calibrate` is trained on the tokens of prompts, too; if not, on those of answers.
    trains_on_prompts: ClassVar[bool] = True
    #: Trace to learn from: a folder, or the name of a trace that ships; "" leaves the choice.
    calibration_trace: str = ""
    #: Whether it works only where the host computes experts: an eviction that leaves no room for
    #: every missing expert, or a policy that weighs the host's times.
    needs_host: ClassVar[bool] = False
    #: Whether it works only where all layers share the slots (``scope=global``).
    shares_slots: ClassVar[bool] = False
    #: Slots that placement must leave empty for this policy, known from `start` on.
    reserve: int = 0
    #: Options, as of ``--set``, with which it learns in moments, for tests of correctness alone.
    quick: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        """Refuse values that an option does not allow (`substrate.engine.options`).

        Raises UsageError: names the option, its value and the allowed ones.
        """
        check_options(self, f"{self.decision}.")

    @property
    def reads_scores(self) -> bool:
        """Whether the policy reads gate scores, which not every trace holds."""
        return type(self).observe is not Policy.observe

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that the policy needs in addition to slots."""
        return 0

    @property
    def learnt(self) -> Mapping[str, str]:
        """Outcome of `calibrate` for the run's provenance: epochs, loss, source of the texts.

        A ``note`` is printed with the run's figures.
        """
        return {}

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        """Learn from the recorded routing of other texts than the run's own.

        Args:
            sequences: with all fields that it ``learns_from``.  Their H may be another than that of
                ``shape``, the model that is charged: a scale model may have computed.
            artefacts: a folder for trained parameters, named by the hash of all their inputs.
            progress: called with the steps done and to do.
        """

    def measure(
        self, losses: Losses, shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        """Called after `calibrate` if it learns from ``loss``: measure what rounded experts lose.

        Args:
            losses: of the calibration texts, with each expert in one of the system's forms.
            artefacts, progress: as in `calibrate`.
        """

    def full_size(self, shape: ModelShape) -> None:
        """Called before `start` with the shape of the model whose bytes are charged.

        The model that computes, whose shape `start` and views have, may be smaller.
        """

    def weight_norms(self, norms_LE: np.ndarray) -> None:
        """Called before `calibrate` and `start`, if it reads them, with norms of experts' weights.

        Args:
            norms_LE: the Frobenius norm of each expert's matrices in the model that computes, with
                one row for each MoE layer.
        """

    def expect(self, prompt_tokens: int, texts: int = 1) -> None:
        """Called before `start` with the most tokens that the prompts of a batch have together.

        It may be more than they have, where prompts and answers are known only together.

        Args:
            texts: how many prompts they are.
        """

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Called when a run begins: create the policy's state."""

    def begin_sequences(self, prompts: Prompts) -> None:
        """Called when a batch begins; the sequences of a batch begin and end together."""

    def end_sequences(self) -> None:
        """Called when a batch has ended."""

    def observe(self, view: LayerView) -> None:
        """Called in every MoE layer of every pass when its gate is known, before `Routing`."""


class Predictor(ABC):
    """Predicts the experts of later layers.  Of equal predictors, a layer runs one."""

    #: Lane of the prediction: the device, a stream next to it (PREDICT), or the host.
    lane: ClassVar[Lane] = Lane.DEVICE
    #: Kind of prediction that it needs from the model, which a trace must have recorded.
    lookahead: ClassVar[Lookahead] = Lookahead.NONE
    #: How many of the following MoE layers it predicts with the model.
    layers: int = 1
    #: Whether it also predicts in prefill.
    in_prefill: ClassVar[bool] = False
    #: Whether it also predicts in a pass's last MoE layer, for the next pass.
    wraps: ClassVar[bool] = False
    #: Whether the control thread goes on without the result.  New speculative fetches then begin
    #: once the prediction has ended; a decision that needs it at once still waits for it.
    in_background: ClassVar[bool] = False

    def asked(self, view: LayerView) -> bool:
        """Return whether a prediction is made in this layer."""
        return view.phase == "decode" or self.in_prefill

    @abstractmethod
    def op(self, view: LayerView) -> Op:
        """Return the ``PREDICT`` operation, with its sizes, as which a prediction is charged."""

    @abstractmethod
    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """Return expected scores of later layers; for this or earlier layers, in the next pass.

        Args:
            done: active experts of this layer that have been computed by then.
        """


class Placement(Policy):
    """Base of placements: choose the experts on the device before the first token."""

    decision = "place"

    #: Whether it leaves slots empty for experts that a layer loads for one use.
    leaves_slots: ClassVar[bool] = False

    def homes(self, shape: ModelShape, budget: Budget) -> Sequence[Home]:
        """Return where each layer's non-expert weights are, and optionally the head's."""
        on_device: Home = "device"
        return (on_device,) * shape.num_layers

    def slots(self, shape: ModelShape, slots: int) -> Sequence[int] | None:
        """Return how many of the slots each MoE layer has; None shares them by `System.scope`."""
        return None

    @abstractmethod
    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return at most ``slots`` pairs (layer, expert) to hold when the run starts."""

    #: The forms of records among which it chooses one for each expert, in place of the system's;
    #: none leaves the form to each fetch.  It is calibrated before memory is divided.
    own_forms: Sequence[Form] = ()

    def chosen_forms(self, shape: ModelShape) -> Ids | None:
        """Return the form of each expert's only record, ``[layers, E]``, if it has ``own_forms``.

        All forms then share slots, each as large as the largest record.
        """
        return None

    def keep_on_host(self, shape: ModelShape, records: int) -> Iterable[tuple[int, int]]:
        """Return at most ``records`` pairs (layer, expert) to keep in host memory all the run.

        Called where not all experts fit there.  The rest of host memory caches the disk.
        """
        return ()

    def after_prefill(self) -> Sequence[Fetch]:
        """Return fetches to make between a batch's prefill and its decode."""
        return ()


class Routing(Policy):
    """Base of routings: choose the experts that the tokens use."""

    decision = "route"

    #: True unless a subclass overrides it.
    reads_scores = True
    #: Whether tokens use experts on the device alone, so that no layer loads any.
    resident_only: ClassVar[bool] = False
    #: Whether the routing uses the system's α.
    has_alpha: ClassVar[bool] = False

    def lossless_at(self, alpha: float) -> bool:
        """Return whether the experts, at this α, are always the model's own choice."""
        return True

    @property
    def exact_prefill(self) -> bool:
        """Whether prompts are routed exactly, so that runs can share their computed prefills."""
        return True

    @property
    def predictor(self) -> Predictor | None:
        """The predictor by whose scores layers are routed ahead; None if none is."""
        return None

    @property
    def routes_passes(self) -> bool:
        """Whether `plan_pass` chooses the experts of all layers when a pass begins, prompts too.

        No gate is then charged or waited for.
        """
        return False

    def pass_op(self, rows: int) -> Op:
        """Return the operation, on the prediction lane, by which `plan_pass` chooses for rows.

        Raises UsageError: the routing routes passes and does not say what that costs.
        """
        raise UsageError(
            f"{type(self).__name__} routes passes at their start and has no `pass_op`; return an "
            "Op of kind PREDICT with the widths of its network"
        )

    def plan_pass(self, forward: ForwardPass, embedding_TH: np.ndarray | None) -> None:
        """Choose the experts of all layers, which `route` then returns layer by layer.

        Args:
            embedding_TH: of each row of the pass, for policies that read it.
        """

    def routes_ahead(self, layer: int) -> bool:
        """Return whether this layer is routed while the one before it computes (decode only)."""
        return False

    def route(self, view: LayerView) -> Routed:
        """Return the experts of each row; the default is the model's own top-k."""
        return Routed(view.topk_ids_TK, view.topk_ids_TK)


class Assignment(Policy):
    """Base of assignments: divide a layer's active experts between the device and the host."""

    decision = "assign"

    reads_scores = True
    #: Whether experts may be computed on the host.
    uses_host: bool = False
    #: What its layers load: experts that stay on the device, experts for one use alone, or none but
    #: those that name the expert which they replace.
    loads: ClassVar[Literal["kept", "passing", "none"]] = "kept"
    #: Whether outputs are always added in their own layer, which deferring does not do.
    lossless: ClassVar[bool] = True
    #: Whether decode passes are divided into `micro_batches`, by the schedule of
    #: `substrate.engine.micro_batches`: the KV cache is in host memory, and the host computes the
    #: part of attention that reads it.
    divides: ClassVar[bool] = False

    def whole_layers(self, shape: ModelShape) -> bool:
        """Return whether a layer's experts are one module, loaded completely or not at all."""
        return False

    def host_copies(self, rows: int) -> int:
        """Return how often a pass of these rows copies host non-expert weights to the device.

        0 computes them on the host.  Otherwise placement must leave room for one layer's.
        """
        return 0

    @abstractmethod
    def assign(self, view: LayerView, active: Active) -> Plan:
        """Return the plan for the active experts.

        Called twice for a layer that is routed ahead: when it is routed, to begin host
        computations and loads early, and at the layer's own turn for experts not on the host.
        """

    def micro_batches(self, lengths: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return the texts of each micro-batch, in their order, where it ``divides`` passes.

        Args:
            lengths: tokens of each text of the batch so far.
        """
        return [range(len(lengths))]

    def waited(self, view: LayerView, plan: Plan, host_ns: int, load_ns: int) -> None:
        """Called after the control thread has waited for the host and for a layer's transfers.

        Only if the system ``synchronises``.  ``host_ns`` is when the host's last output was back,
        ``load_ns`` when the last of the plan's loads was complete; 0 if there was none.
        """


class Prefetching(Policy):
    """Base of prefetchings: select experts to fetch for later layers."""

    decision = "prefetch"

    reads_scores = True
    #: How its transfers are queued.  ``speculative``: behind all needed ones; a fetch that has not
    #: begun is dropped when its layer's gate is known, or when new fetches replace queued ones.
    #: ``committed``: first in, first out with needed loads; each waits for a slot that the current
    #: layer frees, and none is dropped.
    discipline: ClassVar[Literal["speculative", "committed"]] = "speculative"
    #: Whether it commits to keeping all experts of a layer, for which others must leave.
    whole_layers: ClassVar[bool] = False
    #: Number of chunks of a speculative transfer: needed loads are copied between them.
    chunks: int = 1

    @property
    def predictor(self) -> Predictor | None:
        """The predictor whose forecast `prefetch` gets; None if it uses none."""
        return None

    def opening(self, phase: Phase, layer: int) -> Sequence[Fetch]:
        """Return fetches for the beginning of a pass, whose first MoE layer is ``layer``.

        In decode, an empty result keeps the fetches of the pass before queued.
        """
        return ()

    def leaving(self, phase: Phase) -> Sequence[tuple[int, int]]:
        """Return experts (layer, expert) to copy back to the host before the `opening` of a pass.

        The control thread waits for each copy.
        """
        return ()

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return fetches in the order to make them; experts already on the device are skipped.

        Called where a layer with experts follows, or where a predictor that ``wraps`` has predicted
        the next pass.  ``forecast`` is empty where nothing was predicted.
        """
        return ()

    #: Whether the transfer of `pages` is cut into one page for each micro-batch, behind that
    #: micro-batch's state; otherwise it is one piece, before all of them.
    paged: bool = True
    #: Whether the host first copies these experts to page-locked memory.
    staged: bool = True

    def pages(self, layer: int) -> Sequence[Fetch]:
        """Return fetches of a layer, made while a divided pass computes the layer before.

        `prefetch` and `opening` are not called in such a pass, and nothing is predicted.
        """
        return ()


class Admission(Policy):
    """Base of admissions: choose which missed experts enter the cache.

    An expert that the layer loads stays on the device if `admits` says so.  An expert that the host
    computed may be copied in the background: an *upload*.  No layer waits for it unless its plan
    computes the expert on the device, and it is never dropped.  An upload gets its slot when it is
    queued, so that the expert which it replaces leaves at once.  It is refused where `queue`
    uploads are pending, or where no expert can be evicted.
    """

    decision = "admit"

    #: Whether experts that a layer loads may be refused: `admits` is then asked.
    chooses: ClassVar[bool] = False
    #: Most uploads that wait for the link or are under way; None is any number.
    queue: int | None = None

    def admits(self, view: LayerView, expert: int) -> bool:
        """Return whether an expert that this layer loads stays until it is evicted.

        One that does not stay is dropped after its use, as with ``Fetch(keep=False)``.
        """
        return True

    def uploads(self, view: LayerView, missed: Sequence[int]) -> Sequence[Fetch]:
        """Return experts of any layer to copy in the background, in this order.

        Called at the end of each MoE layer.

        Args:
            missed: experts that the host computed although the device lacked them when the gate was
                known, in the order of the plan: first those of its ``host``.
        """
        return ()

    def pass_ends(self, phase: Phase) -> Sequence[Fetch]:
        """Return experts to copy in the background once a forward pass has ended."""
        return ()

    def uploaded(self, key: int) -> None:
        """Called when an upload is complete: at the first gate that is known after its end."""


class Eviction(Policy):
    """Base of evictions: choose the expert to evict."""

    decision = "evict"

    #: For which experts it makes room: all that a layer loads, one at a time that does not stay, or
    #: only those that name the expert which they replace.
    makes_room: ClassVar[Literal["all", "one", "named"]] = "all"

    #: Slots for experts that are not kept: once all other slots are taken, an expert that is kept
    #: replaces another, even if these are free.  Used where layers share slots.
    transient: int = 0
    #: Whether an evicted expert's weights are copied back to the host before its slot is reused.
    writes_back: bool = False
    #: Whether it must know future routing, which only a replay passes to `set_future`.
    clairvoyant: ClassVar[bool] = False
    #: Whether it takes keys of several forms of records; else a system with forms is refused.
    takes_forms: ClassVar[bool] = False
    #: What the engine asks for while it calls `grows`, `victim`, `left` and `arrived`.  It sets
    #: this, and policies read it.  A speculative prefetch for which `victim` returns None is
    #: dropped; a needed load waits, and ends the run if there is nothing to wait for.
    purpose: Purpose = "needed"

    def set_future(
        self, steps: Sequence[tuple[int, Sequence[int]]], may_refuse: bool = False
    ) -> None:
        """Called before `start` in a replay with all future steps: a layer and its experts.

        Args:
            may_refuse: whether a requested expert may get no slot (where only hits count).
        """

    def foresee(self, forecast: Forecast) -> None:
        """Called with a forecast once the control thread has read it or goes on without it."""

    def placed(self, key: int) -> None:
        """Called when placement has given an expert a slot."""
        self.arrived(key)

    def lingering(self, keys: Iterable[int]) -> int:
        """Count residents among these that the policy gave up and whose slots nothing has reused.

        Called before `used` with the experts that a layer finds on the device.
        """
        return 0

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Called when a layer uses these experts, resident or not.

        Where records have several forms it is called for each, and ``layer`` is
        ``form · layers + layer``, as in keys.
        """

    def arrived(self, key: int) -> None:
        """Called when a transfer has claimed a slot for an expert, and once an upload has ended."""

    def left(self, key: int) -> None:
        """Called when an expert that has `arrived` has lost its slot."""

    def grows(self, incoming: int) -> bool:
        """Return whether an expert may take a free slot; if not, one is evicted, if any can be."""
        return True

    @abstractmethod
    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key to evict, or None: to refuse, or because none is allowed."""
