"""LRU within each layer, and buffers that all layers share (Mixtral-Offloading; AdapMoE)."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Eviction
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.evict import first


@dataclass(kw_only=True)
class StagedLRU(Eviction):
    """Keeps as many experts of each layer as were placed; every transfer uses a shared buffer.

    Buffers are the slots that placement left empty.  An expert that a layer needs becomes its own,
    and the expert that it used longest ago becomes a buffer.  A prefetched expert stays in its
    buffer and becomes its layer's own only if it is used.  A buffer is chosen in this order:

        1. prefetched experts that their layer did not use, oldest first
        2. experts that layers have beyond their share, each layer's least recently used first
        3. for a load that the current layer needs: its own least recently used expert
        4. prefetched experts of layers that have not been computed yet, oldest first

    A layer that needs experts of 1 and 2 finds them until their buffer is reused.

    Attributes:
        staging: slots that placement must leave empty in each pool, or all slots of a smaller pool.
        write_back: whether an evicted expert is copied back to the host.
    """

    staging: int = option(4, low=1, searched=(1, 16), scale="log")
    write_back: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reserve = self.staging

    @property
    def writes_back(self) -> bool:  # type: ignore[override]
        """Whether an evicted expert is copied back to the host: the option ``write_back``."""
        return self.write_back

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Create empty lists of each layer's experts and of prefetched experts, and zero shares."""
        self._experts = shape.num_experts
        self.reserve = sum(min(self.staging, slots) for slots in cache.pools)
        layers = range(shape.num_layers)
        self._share = [0 for _ in layers]
        #: Each layer's own experts, least recently used first.
        self._own = [OrderedDict[int, None]() for _ in layers]
        #: Layers with more experts than their share, the least recently used layer first.
        self._over = OrderedDict[int, None]()
        #: Prefetched experts: of layers not computed yet, and of layers that did not use them.
        self._ahead = OrderedDict[int, None]()
        self._unused = OrderedDict[int, None]()
        #: Keys of the experts that the current layer uses.
        self._needed: set[int] = set()

    def placed(self, key: int) -> None:
        """Add a placed expert to its layer's own experts and increase the layer's share by one."""
        layer = key // self._experts
        self._share[layer] += 1
        self._own[layer][key] = None

    def lingering(self, keys: Iterable[int]) -> int:
        """Count prefetched experts that were not used, and those beyond their layer's share."""
        return sum(key in self._unused or self._is_beyond_share(key) for key in keys)

    def _is_beyond_share(self, key: int) -> bool:
        layer = key // self._experts
        own = self._own[layer]
        return key in islice(own, max(0, len(own) - self._share[layer]))

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Make used residents their layer's most recent; mark its other prefetches as unused."""
        base, own = layer * self._experts, self._own[layer]
        self._needed = {base + expert for expert in experts}
        for key in sorted(self._needed):
            if key in own:
                own.move_to_end(key)
            elif key in self._ahead or key in self._unused:
                self._ahead.pop(key, None)
                self._unused.pop(key, None)
                own[key] = None
        for key in [k for k in self._ahead if k // self._experts == layer]:
            del self._ahead[key]
            self._unused[key] = None
        self._weigh(layer)

    def arrived(self, key: int) -> None:
        """Add the expert to its layer's experts if needed now, else to the prefetched ones."""
        if key in self._needed:
            layer = key // self._experts
            self._own[layer][key] = None
            self._weigh(layer)
        else:
            self._ahead[key] = None

    def left(self, key: int) -> None:
        """Remove the expert from all lists."""
        layer = key // self._experts
        self._ahead.pop(key, None)
        self._unused.pop(key, None)
        self._own[layer].pop(key, None)
        self._weigh(layer)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the expert whose buffer is reused next, in the class docstring's order."""
        found = first(self._unused, allowed)
        for layer in self._over:
            if found is None:
                found = first(self._own[layer], allowed)
        if found is None and incoming in self._needed:
            found = first(self._own[incoming // self._experts], allowed)
        return first(self._ahead, allowed) if found is None else found

    def _weigh(self, layer: int) -> None:
        """Update whether a layer has more experts than its share."""
        if len(self._own[layer]) > self._share[layer]:
            self._over[layer] = None
            self._over.move_to_end(layer)
        else:
            self._over.pop(layer, None)
