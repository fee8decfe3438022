"""Asks what to fetch for later layers, and queues it as its discipline says."""

from moebench.substrate.engine.counts import Tally
from moebench.substrate.engine.decisions import LayerView
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
        self._lock, self._first = transfers.machine.lock, shape.moe_layers[0]
        asks = type(policy).prefetch is not Prefetching.prefetch  # most policies fetch nothing
        self._commits = policy.discipline == "committed"
        #: Whether layers ask for transfers in idle time, or for loads that begin early.
        self.speculative, self.committed = asks and not self._commits, asks and self._commits

    def open(self, phase: Phase) -> None:
        """A pass begins."""
        opening = self._policy.opening(phase, self._first)
        if not opening and phase == "decode":
            return
        if self._commits:
            self._transfers.commit(opening)
        else:  # instead of what is queued by now: that is of the pass that did not come
            with self._lock:
                self._transfers.speculate(opening, self._policy.chunks)
        self._tally.ask(opening, self._first, self._policy.discipline)

    def ask(self, view: LayerView, predicted: Span | None) -> None:
        """A layer's own loads are queued: fetch for later ones, once the prediction is known."""
        layer = view.next_layer
        if layer is None and predicted is None:
            return
        forecast = self._ops.forecast(predicted, waits=self.committed)
        with self._lock:
            wanted = self._policy.prefetch(view, forecast)
            if self.speculative:
                since_ns = 0 if predicted is None else predicted.end_ns or 0
                self._transfers.speculate(wanted, self._policy.chunks, since_ns)
        if self.committed:
            self._transfers.commit(wanted)
        self._tally.ask(wanted, self._first if layer is None else layer, self._policy.discipline)
