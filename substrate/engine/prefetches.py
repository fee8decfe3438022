"""Prefetches: queues what the prefetching policy returns, as its discipline requires."""

from moebench.substrate.engine.counts import Tally
from moebench.substrate.engine.decisions import LayerView
from moebench.substrate.engine.operations import Operations
from moebench.substrate.engine.policies import Prefetching
from moebench.substrate.engine.transfers import Transfers
from moebench.substrate.machines.protocol import Span
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Phase


class Prefetches:
    """Calls the prefetching policy of a run and queues its fetches for later layers."""

    def __init__(
        self, policy: Prefetching, shape: ModelShape, ops: Operations, transfers: Transfers,
        tally: Tally,
    ) -> None:  # fmt: skip
        self._policy, self._ops, self._transfers, self._tally = policy, ops, transfers, tally
        self._lock, self._first = transfers.machine.lock, shape.moe_layers[0]
        asks = type(policy).prefetch is not Prefetching.prefetch  # most policies prefetch nothing
        self._commits = policy.discipline == "committed"
        #: Whether fetches are transfers in a lane's idle time, or loads that begin early.
        self.speculative, self.committed = asks and not self._commits, asks and self._commits

    def open(self, phase: Phase) -> None:
        """Queue the policy's opening fetches at the beginning of a pass."""
        opening = self._policy.opening(phase, self._first)
        if not opening and phase == "decode":
            return
        if self._commits:
            self._transfers.commit(opening)
        else:  # replace queued fetches, which are for a pass that did not happen
            with self._lock:
                self._transfers.speculate(opening, self._policy.chunks)
        self._tally.ask(opening, self._first, self._policy.discipline)

    def ask(self, view: LayerView, predicted: Span | None) -> None:
        """Queue fetches for later layers, behind the layer's own loads."""
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
