"""Asks what to fetch for later layers, and queues it as its discipline says."""

from collections.abc import Sequence

from moebench.substrate.engine.counts import Tally
from moebench.substrate.engine.decisions import Fetch, LayerView
from moebench.substrate.engine.operations import Operations
from moebench.substrate.engine.policies import Prefetching
from moebench.substrate.engine.transfers import Transfers
from moebench.substrate.machines.protocol import Span
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Phase


class Prefetches:
    """Fetches for later layers in one run."""

    def __init__(
        self, policy: Prefetching, shape: ModelShape, ops: Operations, transfers: Transfers,
        tally: Tally,
    ) -> None:  # fmt: skip
        self._policy, self._ops, self._transfers, self._tally = policy, ops, transfers, tally
        self._first = shape.moe_layers[0]
        asks = type(policy).prefetch is not Prefetching.prefetch  # most policies fetch nothing
        self._commits = policy.discipline == "committed"
        #: Whether layers ask for transfers in idle time, or for loads that begin early.
        self.speculative, self.committed = asks and not self._commits, asks and self._commits

    def open(self, phase: Phase) -> None:
        """A pass begins."""
        opening = self._policy.opening(phase, self._first)
        if opening or phase == "prefill":  # what is queued by then is of the pass that did not come
            self._fetch(opening, self._first)

    def ask(self, view: LayerView, predicted: Span | None) -> None:
        """A layer's own loads are queued: fetch for later ones, once the prediction is known."""
        layer = view.next_layer
        if layer is None and predicted is None:
            return
        forecast = self._ops.forecast(predicted, waits=self.committed)
        with self._transfers.machine.lock:
            wanted = self._policy.prefetch(view, forecast)
        since_ns = 0 if predicted is None else predicted.end_ns or 0
        self._fetch(wanted, self._first if layer is None else layer, since_ns)

    def _fetch(self, wanted: Sequence[Fetch], layer: int, since_ns: int = 0) -> None:
        if self._commits:
            self._transfers.commit(wanted)
        else:
            self._transfers.speculate(wanted, self._policy.chunks, since_ns)
        self._tally.ask(wanted, layer, self._policy.discipline)
