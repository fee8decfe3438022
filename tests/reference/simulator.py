"""One batch after the other through an offloading system: the reference simulator.

Written from docs/architecture.md, docs/timing.md, docs/caches.md and the papers.  It shares no code
with moebench, and has the rules of seven systems alone: everything resident, loading on demand, a
fixed placement whose misses the host computes, SMoE without substitution (α = 0), with and without
prefetching, and FlashMoE's slots by layer with LRU.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tests.reference.cache import Key, Policy, Slots
from tests.reference.inputs import Trace
from tests.reference.lanes import Lanes, Wait
from tests.reference.prices import Prices

#: How many past durations SMoE's Algorithm 2 averages.
HISTORY = 10

#: Sums of Algorithm 2 that differ by no more count as equal, in seconds.
SAME = 1e-6

#: Slots that a fixed placement leaves empty for loaded experts.
STAGING = 2


@dataclass(frozen=True)
class System:
    """The rules of a system.

    Attributes:
        place: whether experts have slots before the first token, by id and then by layer.
        by_layer: each layer has its own slots.
        prefetch: the next layer is predicted, and its top-score experts are fetched.
        parallel_reads: a record is read from the disk while another one is.
    """

    evict: Policy = "lru"
    assign: Literal["load", "host", "balanced"] = "load"
    place: bool = True
    resident: bool = False
    by_layer: bool = False
    parallel_reads: bool = True
    prefetch: bool = False


class Simulator:
    """Runs sequences of a trace; see the module's docstring.

    Args:
        slots: experts that the device holds.
        host_bytes: host memory for records before the disk; None if it holds all.
    """

    def __init__(
        self, prices: Prices, trace: Trace, system: System, slots: int,
        host_bytes: float | None = None,
    ) -> None:  # fmt: skip
        self.prices, self.trace, self.system = prices, trace, system
        self.model, self.of, self.lanes = prices.model, prices.of, Lanes()
        #: Hits, loads and host experts of each layer that was decoded.
        self.decoded: list[tuple[int, int, int]] = []
        self.counts = {phase: defaultdict(int) for phase in ("prefill", "decode")}
        self._waits_each_layer = bool(self.of["software.waits_each_layer"])
        layers = self.model.with_experts
        self._at = {layer: at for at, layer in enumerate(layers)}
        if system.resident:
            slots = self.model.experts * len(layers)
        self._slots = self._pools(layers, slots)
        #: Records in host memory, read longest ago first, and when each has been read.
        self._memory: OrderedDict[Key, float] = OrderedDict()
        self._room = None if host_bytes is None else int(host_bytes // prices.record)
        placed = self._place(layers, slots) if system.place else []
        if self._room is not None:  # placed experts have passed through it
            self._memory |= dict.fromkeys(placed[-self._room :] if self._room else [], 0.0)
        read = 0.0 if self._room is None else prices.read(queued=False)
        self._loads = deque([read + prices.load()], HISTORY)
        self._hosts = deque([read + prices.on_host(1)], HISTORY)
        self._queue: list[tuple[Key, float]] = []
        self._wanted: set[Key] = set()
        self._pinned: set[Key] = set()

    def _pools(self, layers: Sequence[int], slots: int) -> dict[int, Slots]:
        if not self.system.by_layer:
            return dict.fromkeys(layers, Slots(slots, self.system.evict))
        each, rest = divmod(slots, len(layers))
        return {
            layer: Slots(each + (at < rest), self.system.evict) for at, layer in enumerate(layers)
        }

    def _place(self, layers: Sequence[int], slots: int) -> list[Key]:
        """Give slots to the lowest ids of every layer; they arrive by id, then by layer."""
        slots -= STAGING if self.system.evict == "static" else 0
        each, rest = divmod(min(slots, self.model.experts * len(layers)), len(layers))
        placed = [
            (layer, expert)
            for expert in range(each + 1)
            for at, layer in enumerate(layers)
            if expert < each + (at < rest)
        ]
        for key in placed:
            self._slots[key[0]].put(key, 0.0)
            self._slots[key[0]].empty -= 1
        return placed

    # ------------------------------------------------------------------ transfers

    def _read(self, key: Key, since: float) -> tuple[float, float | None]:
        """Return when a record is in host memory, and when its read began, if there is one."""
        if self._room is None:
            return 0.0, None
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key], None
        lanes = self.lanes
        queued = lanes.free["disk"] > since and self.system.parallel_reads
        lasts = self.prices.read(queued)
        end = lanes.place("disk", lasts, since, size=self.prices.record)
        if self._room:
            if len(self._memory) >= self._room:
                self._memory.popitem(last=False)
            self._memory[key] = end
        return end, end - lasts

    def _load(self, key: Key, computed: set[Key]) -> float:
        """Load a needed expert; ``computed`` are those of its layer that were submitted."""
        lanes, slots = self.lanes, self._slots[key[0]]
        from_disk = self._room is not None and key not in self._memory
        free = max(lanes.free["disk" if from_disk else "h2d"], lanes.now)
        self._start_queued()
        others = [
            one for one, ready in slots.ready.items()
            if ready <= lanes.now and one not in self._pinned
        ]  # fmt: skip
        soon = [*others, *(one for one in computed if one in slots.ready)]
        overwritten = slots.take(slots.idle(others, lanes.now), slots.idle(soon, free), soon)
        lanes.now += self.of["software.copy_submit"]
        self._start_queued()
        read, began = self._read(key, max(lanes.now, overwritten))
        lasts = self.prices.load()
        after = [(max(overwritten, read), "load")]
        end = lanes.place("h2d", lasts, after=after, size=self.prices.record)
        self._loads.append(end - (end - lasts if began is None else began))
        slots.put(key, end, staged=self.system.evict == "static")
        if not self.prices.copies_pinned:  # returns when the data have been staged
            lanes.wait(end, self.of["software.sync"])
            self._start_queued()
        return end

    def _start_queued(self) -> None:
        """Start prefetches at the instants, up to now, at which the link had no needed work."""
        lanes = self.lanes
        while self._queue:
            key, since = self._queue[0]
            from_disk = self._room is not None and key not in self._memory
            start = max(lanes.free["disk" if from_disk else "h2d"], since)
            if start > lanes.now - 1e-12:
                return
            del self._queue[0]
            slots = self._slots[key[0]]
            if key in slots.ready:
                continue
            allowed = [
                one for one, ready in slots.ready.items()
                if ready <= start and slots.reader.get(one, 0.0) <= start
                and one not in self._pinned and one not in self._wanted
            ]  # fmt: skip
            try:
                slots.take(allowed)
            except LookupError:
                continue
            read, _ = self._read(key, start)
            size = self.prices.record
            end = lanes.place("h2d", self.prices.load(), start, [(read, "load")], size)
            slots.put(key, end)

    # ------------------------------------------------------------------ one layer

    def _predict(self, rows: np.ndarray, cached: int, pairs: float, layer: int) -> None:
        """Queue the next layer's top-score experts, as its attention and gate expect them."""
        then, lanes, prices, top_k = layer + 1, self.lanes, self.prices, self.model.top_k
        if then >= self.model.layers:
            return
        if self._phase == "prefill":
            wanted = [(then, expert) for expert in range(self.model.experts)]
        else:
            python = self.of["software.layer"] - 2 * self.of["software.launch"]
            launches = prices.launches("attention") + prices.launches("gate")
            work = prices.attention(len(rows), cached, pairs) + prices.gate(len(rows))
            end = lanes.launch(self.of["software.launch"], max(launches, python), work)
            lanes.wait(end, self.of["software.sync"])
            self._start_queued()
            scores_TE = np.asarray(
                self.trace.predicted[self.trace.decoded[rows], self._at[layer]], dtype=np.float32
            )
            found: list[tuple[float, Key]] = []
            for scores in scores_TE:
                best = np.argsort(-scores, kind="stable")[: top_k + 1]
                found += [
                    (float(scores[one]), (then, int(one)))
                    for one in best[:top_k] if scores[one] >= scores[best[top_k]]
                ]  # fmt: skip
            wanted = [key for _, key in sorted(found, key=lambda one: -one[0])]
        self._wanted = set(wanted)
        held = self._slots[then].ready
        self._queue = [(key, lanes.now) for key in dict.fromkeys(wanted) if key not in held]

    def _divide(
        self, absent: list[int], rows: dict[int, int], best: np.ndarray | None, since: float
    ) -> tuple[list[int], list[int]]:
        """Return the experts to load and those for the host, each in order."""
        if self.system.assign == "load" or (
            self.system.assign == "host" and self._phase == "prefill"
        ):
            return sorted(absent), []
        if self.system.assign == "host":
            return [], sorted(absent)
        assert best is not None
        queue = deque(sorted(absent, key=lambda e: (-best[e], -rows[e], e)))
        free = self.lanes.free
        on_link, on_host = max(0.0, free["h2d"] - since, free["disk"] - since), 0.0
        load, host = [], []
        while queue:
            if on_link <= on_host + SAME:
                load.append(queue.popleft())
                on_link += float(np.mean(self._loads))
            else:
                host.append(queue.pop())
                on_host += float(np.mean(self._hosts))
        return load, host

    def _expert(self, key: Key, rows: int, after: Sequence[Wait]) -> None:
        """Compute one expert on the device."""
        lanes, of, prices = self.lanes, self.of, self.prices
        if self._waits_each_layer:  # torch.where waits for the stream
            lanes.now = max(lanes.now, lanes.free["device"], *(end for end, _ in after))
            self._start_queued()
        launches = max(prices.launches("expert"), of["software.expert"])
        work = prices.product(self.model.expert, rows)
        end = lanes.launch(of["software.launch"], launches, work, after)
        self._slots[key[0]].reader[key] = end

    def _experts(self, layer: int, rows_T: np.ndarray, gate_end: float) -> None:
        """Divide and compute a layer's experts, and its shared ones."""
        lanes, of, prices, slots = self.lanes, self.of, self.prices, self._slots[layer]
        lanes.wait(gate_end, of["software.sync"])
        self._start_queued()
        self._queue = []  # what has not begun by now is dropped
        since = lanes.now
        lanes.now += of["software.decision"]
        ids_TK = np.asarray(self.trace.ids[rows_T, self._at[layer]])
        used, counts = np.unique(ids_TK, return_counts=True)
        rows = dict(zip(used.tolist(), counts.tolist(), strict=True))
        slots.left = layer + 1 if self._phase == "prefill" else 0
        best = None
        if self.trace.scores is not None:
            scores_TE = np.asarray(self.trace.scores[rows_T, self._at[layer]], dtype=np.float32)
            slots.observe(layer, scores_TE.mean(0))
            best = scores_TE.max(0)
        here = [e for e in rows if slots.ready.get((layer, e), np.inf) <= since]
        coming = [e for e in rows if (layer, e) in slots.ready and e not in here]
        absent = [e for e in rows if (layer, e) not in slots.ready]
        load, host = self._divide(absent, rows, best, since)
        count = self.counts[self._phase]
        for name, some in (("active", rows), ("hits", here), ("loads", load), ("host", host)):
            count[name] += len(some)
        if self._phase == "decode":
            self.decoded.append((len(here), len(load), len(host)))
        self._pinned = {(layer, e) for e in rows}
        for expert in [*here, *coming]:
            slots.use((layer, expert))
        arrivals = {expert: slots.ready[layer, expert] for expert in coming}
        waiting = deque(load)
        while waiting:
            try:
                arrivals[waiting[0]] = self._load((layer, waiting[0]), set())
            except LookupError:
                break
            waiting.popleft()
        outputs = [self._on_host((layer, e), rows[e], gate_end) for e in host]
        if here:  # one after the other, as one operation
            launches = len(here) * max(prices.launches("expert"), of["software.expert"])
            work = sum(prices.product(self.model.expert, rows[e]) for e in here)
            end = lanes.launch(of["software.launch"], launches, work)
            slots.reader |= {(layer, e): end for e in here}
        if self.model.shared:
            work = prices.product(self.model.shared, len(rows_T))
            lanes.launch(of["software.launch"], prices.launches("shared"), work)
        if self.system.prefetch:
            self._predict(rows_T, self._cached, self._pairs, layer)
        self._in_turn(layer, rows, {(layer, e) for e in here}, arrivals, waiting)
        after = [(max(outputs), "host")] if outputs else []
        end = lanes.launch(of["software.launch"], 2 * of["software.launch"],
                           prices.total(len(rows_T)), after)  # fmt: skip
        if self._waits_each_layer:
            lanes.wait(end, of["software.sync"])
            self._start_queued()
        self._pinned = set()

    def _in_turn(
        self, layer: int, rows: dict[int, int], computed: set[Key], arrivals: dict[int, float],
        waiting: deque[int],
    ) -> None:  # fmt: skip
        """Compute what arrives; a load that waits takes the slot of an expert that was computed."""
        due = deque(arrivals)
        while due or waiting:
            while waiting:
                try:
                    arrivals[waiting[0]] = self._load((layer, waiting[0]), computed)
                except LookupError:
                    break
                due.append(waiting.popleft())
            expert = due.popleft()
            self._expert((layer, expert), rows[expert], [(arrivals[expert], "load")])
            computed.add((layer, expert))

    def _on_host(self, key: Key, rows: int, gate_end: float) -> float:
        """Compute an expert on the host, and return when its output is on the device."""
        lanes, of, prices = self.lanes, self.of, self.prices
        submit = of["software.copy_submit"]
        since = lanes.now + submit
        lanes.now = since + max(0.0, of["software.expert"] - prices.launches("expert"))
        read, began = self._read(key, since)
        lasts = prices.on_host(rows)
        end = lanes.place("host", lasts, since, [(max(gate_end, read), "host")])
        self._hosts.append(end - (end - lasts if began is None else began))
        lanes.now += submit
        return lanes.place("d2h", prices.output(rows), after=[(end, "host")])

    # ------------------------------------------------------------------ passes

    def _forward(self, rows_T: np.ndarray, lengths: Sequence[int], phase: str) -> float:
        """Run a pass over the layers, and return when the control thread has its tokens."""
        lanes, of, prices = self.lanes, self.of, self.prices
        self._phase, self._cached = phase, sum(lengths)
        prompt = phase == "prefill"
        self._pairs = sum(n * (n + 1) / 2 if prompt else n for n in lengths)
        one = of["software.launch"]
        launched = prices.launches("gate") + 2 * one
        for layer in range(self.model.layers):
            python = max(prices.launches("attention"), of["software.layer"] - launched)
            work = prices.attention(len(rows_T), self._cached, self._pairs)
            lanes.launch(one, python, work)
            if layer in self._at:
                end = lanes.launch(one, prices.launches("gate"), prices.gate(len(rows_T)))
                self._experts(layer, rows_T, end)
            else:
                work = prices.product(self.model.dense[layer], len(rows_T))
                lanes.launch(one, prices.launches("expert"), work)
        end = lanes.launch(
            one, prices.launches("head"), prices.product(self.model.head, len(lengths))
        )
        lanes.wait(end, of["software.sync"])
        return lanes.now

    def run(self, sequences: Sequence[int], new_tokens: int, batch: int = 1) -> dict[str, Any]:
        """Run sequences in batches, and return figures with the names of a run's document."""
        first, step, took = [], [], 0.0
        for begin in range(0, len(sequences), batch):
            both = [self.trace.rows(one) for one in sequences[begin : begin + batch]]
            lengths = [len(prompt) for prompt, _ in both]
            start = self.lanes.now
            begun = self._forward(np.concatenate([rows for rows, _ in both]), lengths, "prefill")
            end = begun
            for token in range(new_tokens - 1):
                lengths = [n + 1 for n in lengths]
                rows_T = np.array([decoded[token] for _, decoded in both])
                end = self._forward(rows_T, lengths, "decode")
            first.append(begun - start)
            step.append((end - begun) / (new_tokens - 1))
            took += end - start
        self.lanes.finish()
        lanes = {lane: 1e3 * busy for lane, busy in self.lanes.busy.items()}
        return {
            "tpot_ms": 1e3 * float(np.mean(step)), "ttft_ms": 1e3 * float(np.mean(first)),
            "e2e_ms": 1e3 * took / len(first), "bytes_h2d": self.lanes.bytes["h2d"],
            "bytes_disk": self.lanes.bytes["disk"], "lanes": lanes,
            "stall_ms": 1e3 * sum(self.lanes.stalls.values()),
            "experts": {phase: dict(counts) for phase, counts in self.counts.items()},
        }  # fmt: skip
