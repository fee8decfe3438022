"""llama.cpp's capped LRU: its rule by hand, against a restatement of all layers, and timed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import OpKind
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.capacity import Budget
from moebench.substrate.memory.tier import Tier
from moebench.systems.llamacpp_capped_lru import (
    Capped,
    LayerLRU,
    LayerSlots,
    LlamaCppCappedLRU,
    PublishedCopies,
    pending,
    schedule,
)
from moebench.systems.options import build
from tests.substrate.engine.fakes import FlatCosts, prices, small_shape
from tests.substrate.engine.own import evicted, model_of, of, run
from tests.systems.views import active, shape, view

# ----------------------------------------------------------------------------- the rule


def test_misses_are_remembered_once_in_the_order_of_rows():
    assert pending([5, 1, 7, 5, 2, 1], {7}) == [5, 1, 2]


def test_point_4_the_last_two_misses_go_first():
    assert schedule([5, 1, 2, 8], [], (), 3) == [(8, None), (2, None)]
    assert schedule([5], [], (), 3) == [(5, None)]
    assert schedule([], [], (), 3) == []
    assert schedule([5, 1, 2], [], (), 3, most=0) == []
    assert schedule([5, 1, 2], [], (), 9, most=9) == [(2, None), (1, None), (5, None)]


def test_point_4_one_of_the_two_that_was_published_meanwhile_uses_up_its_place():
    assert schedule([5, 1, 2, 8], [8, 7], (), 3) == [(2, None)]  # and not 2 and 1
    assert schedule([5, 1, 2, 8], [8, 2], (), 3) == []
    assert schedule([5, 1, 2, 8], [5, 1], (), 3) == [(8, None), (2, None)]
    # So does one whose copy is under way, which llama.cpp would copy a second time.
    assert schedule([5, 1, 2, 8], [7], {8}, 3) == [(2, None)]


def test_point_4_the_victims_are_the_least_recently_used():
    assert schedule([5, 1], [7, 3, 4], (), 1) == [(1, None), (5, 7)]
    assert schedule([5, 1], [7, 3, 4], (), 0) == [(1, 7), (5, 3)]
    # All other slots are under way.
    assert schedule([5, 1], [7], {3, 4}, 0) == [(1, 7)]
    # 2 leaves for 3 and comes again for 1.
    assert schedule([1, 2, 3], [2, 1], (), 0) == [(3, 2), (2, 1)]


# ----------------------------------------------------------------------------- policies by hand

EXPERTS, LAYERS = 8, 2
MODEL = shape(EXPERTS, 2, LAYERS)


class Driver:
    """Drives the policies of the system as the engine does; copies end when it is told."""

    def __init__(self, n, uploads=2, max_batch=4):
        self.system = LlamaCppCappedLRU(
            admit=Capped(uploads_per_layer=uploads, max_batch=max_batch),
            assign=PublishedCopies(max_batch=max_batch),
        )
        # A third of eight experts, three slots, is for copies of prompts.
        self.cache = ExpertCache(MODEL, n * LAYERS + 3, "global", Tier("device", 0), 0)
        self.system.start(MODEL, self.cache)
        assert self.system.evict.share == n
        self.copying, self.placed = [], 0

    def layer(self, layer, ids):
        """Return which experts the device computes."""
        base = layer * EXPERTS
        coming = [e for e in range(EXPERTS) if base + e in self.copying]
        there = [e for e in range(EXPERTS) if self.cache.holds(base + e) and e not in coming]
        scores = [[1.0 / EXPERTS] * EXPERTS for _ in ids]
        seen = view(
            scores, len(ids[0]), there, in_flight=coming, own=ids, layer=layer, layers=LAYERS
        )
        self.system.observe(seen)
        rows = active(seen)
        plan = self.system.assign.assign(seen, rows)
        self.system.evict.used(layer, rows.rows)
        assert not self.system.admit.uploads(seen, rows.absent)
        assert sorted([*plan.device, *plan.host]) == list(rows.rows)
        return set(plan.device)

    def ends(self):
        """End a pass; return what it uploads."""
        wanted = []
        for fetch in self.system.admit.pass_ends("decode"):
            base, victim = fetch.layer * EXPERTS, None
            key = base + fetch.expert
            assert not self.cache.holds(key)
            wanted.append(fetch)
            allowed = [self.cache.holds(k) and k not in self.copying for k in range(16)]
            if fetch.instead_of is None:
                assert self.system.evict.grows(key)
            else:
                victim = base + fetch.instead_of
                assert victim == self.system.evict.victim(allowed, key)
                assert allowed[victim]
                assert not self.system.evict.grows(key)
            self.cache.claim(key, victim)
            if victim is not None:
                self.system.evict.left(victim)
            self.copying.append(key)
        return [(fetch.layer, fetch.expert) for fetch in wanted]

    def copied(self):
        key = self.copying.pop(0)
        self.system.evict.arrived(key)
        self.system.admit.uploaded(key)

    def pass_of(self, ids, copied=0):
        """Run a pass with the same rows in both layers; copies end before its second layer."""
        here = self.layer(0, ids)
        for _ in range(min(copied, len(self.copying))):
            self.copied()
        return here, self.layer(1, ids)


def test_point_4_the_others_are_forgotten():
    # Three misses; two are uploaded.  In the next pass 3 is not asked for again.
    made = Driver(4)
    made.pass_of([[3, 1], [5, 1]])
    assert made.ends() == [(0, 5), (0, 1), (1, 5), (1, 1)]
    made.pass_of([[5, 1]], copied=9)
    assert made.ends() == []


def test_point_4_the_newcomer_is_usable_when_its_copy_is_published():
    made = Driver(4)
    assert made.pass_of([[3, 1]]) == (set(), set())
    assert made.ends() == [(0, 1), (0, 3), (1, 1), (1, 3)]
    # The copies end before layer 1, where their experts are complete: still the host's.
    assert made.pass_of([[3, 1]], copied=4) == (set(), set())
    # Both of a layer's last misses are published at the end of this step: no upload.
    assert made.ends() == []
    assert made.pass_of([[3, 1]]) == ({3, 1}, {3, 1})


def test_point_4_the_victim_leaves_when_the_newcomer_is_scheduled():
    made = Driver(2)
    made.pass_of([[3, 1]])
    made.ends()
    made.pass_of([[3, 1]], copied=4)
    made.ends()
    # 3 is used after 1 in the next pass, so 1 leaves for 6, and then 3 for 7.
    assert made.pass_of([[1, 3]]) == ({1, 3}, {1, 3})
    made.ends()
    made.pass_of([[3, 6]])
    assert made.ends() == [(0, 6), (1, 6)]
    assert not made.cache.holds(1)
    assert made.pass_of([[1, 3]]) == ({3}, {3})  # 6 has not come and 1 has left


def test_point_4_steps_of_more_than_four_tokens_are_neither_served_nor_counted():
    made = Driver(4)
    made.pass_of([[3, 1]] * 5)
    assert made.ends() == []
    made.pass_of([[3, 1]] * 4)
    assert len(made.ends()) == 4
    made.pass_of([[3, 1]], copied=4)
    made.ends()
    assert made.pass_of([[3, 1]] * 5) == (set(), set())
    assert made.pass_of([[3, 1]] * 4) == ({3, 1}, {3, 1})


def test_point_4_a_miss_that_was_published_meanwhile_uses_up_one_of_the_two():
    made = Driver(4)
    made.pass_of([[3, 1]])
    made.ends()
    # 7, 3 and 1 are missed; 3 and 1 are published at the end of the step, so 7 is forgotten.
    made.pass_of([[7, 3, 1]], copied=4)
    assert made.ends() == []
    # 7 is one of the last two.
    made.pass_of([[1, 7]])
    assert made.ends() == [(0, 7), (1, 7)]


def test_point_4_a_copy_that_takes_two_steps_is_not_made_twice_but_uses_up_an_upload():
    made = Driver(4)
    made.pass_of([[3, 1]])
    made.ends()
    # 1 and 3 are on their way and missed again: llama.cpp copies them into two more slots.
    made.pass_of([[5, 3]])
    assert made.ends() == [(0, 5), (1, 5)]
    made.pass_of([[6, 3], [5, 1]])
    assert made.ends() == []  # the last two misses are 5 and 1


def test_a_layer_whose_slots_are_all_under_way_uploads_nothing():
    made = Driver(1)
    made.pass_of([[3, 1]])
    assert made.ends() == [(0, 1), (1, 1)]
    made.pass_of([[5, 6]])
    assert made.ends() == []
    made.pass_of([[5, 6]], copied=1)  # of layer 0
    assert made.ends() == [(0, 6)]


def test_prompts_evict_no_cached_expert():
    made = Driver(1)
    made.pass_of([[3, 1]])
    made.ends()
    made.pass_of([[3, 1]], copied=2)
    made.pass_of([[3, 1]] * 5)
    allowed = [True] * 16
    assert made.system.evict.victim(allowed, 5) is None
    made.pass_of([[3, 2]])
    assert made.system.evict.victim(allowed, 5) == 1
    assert made.system.evict.transient == 3


# ----------------------------------------------------------------------------- all layers


class Layers:
    """Restates the cache: slots with clocks, the pending misses of a step, copies in a queue."""

    def __init__(self, n, uploads, twice):
        self.expert = [[None] * n for _ in range(LAYERS)]
        self.last = [[0] * n for _ in range(LAYERS)]
        self.flying = [[False] * n for _ in range(LAYERS)]
        self.clock, self.uploads, self.twice = 0, uploads, twice
        self.todo, self.done = [], []
        self.missed = [[] for _ in range(LAYERS)]

    def layer(self, layer, ids):
        found = set()
        for expert in [e for row in ids for e in row]:
            if expert in self.expert[layer]:
                self.clock += 1
                self.last[layer][self.expert[layer].index(expert)] = self.clock
                found.add(expert)
            elif expert not in self.missed[layer]:
                self.missed[layer].append(expert)
        return found

    def ends(self):
        for layer, slot, expert in self.done:
            self.clock += 1
            self.expert[layer][slot], self.last[layer][slot] = expert, self.clock
            self.flying[layer][slot] = False
        self.done, wanted = [], []
        for layer, missed in enumerate(self.missed):
            for expert in missed[::-1][: self.uploads]:
                coming = [e for at, _, e in self.todo if at == layer]
                if expert in self.expert[layer] or (expert in coming and not self.twice):
                    continue
                free = [s for s, flies in enumerate(self.flying[layer]) if not flies]
                if not free:
                    break
                empty = [s for s in free if self.expert[layer][s] is None]
                slot = (empty or sorted(free, key=lambda s, at=layer: self.last[at][s]))[0]
                self.expert[layer][slot], self.flying[layer][slot] = None, True
                self.todo.append((layer, slot, expert))
                wanted.append((layer, expert))
            missed.clear()
        return wanted


PASSES = st.lists(
    st.tuples(
        st.lists(st.permutations(range(6)).map(lambda ids: ids[:3]), min_size=1, max_size=4),
        st.integers(0, 4),
    ),
    max_size=40,
)


@pytest.mark.slow
@given(PASSES, st.integers(1, 4), st.integers(0, 3), st.booleans())
@settings(max_examples=300, deadline=None)
def test_policies_do_what_the_layers_do(passes, n, uploads, in_time):
    # Where every copy ends within a step, none is scheduled twice, and the rules are the same.
    made, truth = Driver(n, uploads), Layers(n, uploads, twice=in_time)
    for ids, ended in passes:
        assert made.layer(0, ids) == truth.layer(0, ids)
        for _ in range(len(made.copying) if in_time else min(ended, len(made.copying))):
            made.copied()
            truth.done.append(truth.todo.pop(0))
        assert made.layer(1, ids) == truth.layer(1, ids)
        assert made.ends() == truth.ends()
        assert made.copying == [layer * EXPERTS + e for layer, _, e in truth.todo]
        held = {
            layer * EXPERTS + e for layer in range(LAYERS) for e in truth.expert[layer]
            if e is not None
        }  # fmt: skip
        assert {k for k in range(16) if made.cache.holds(k)} == held | {*made.copying}


# ----------------------------------------------------------------------------- the system

ONE = small_shape(layers=1)


def timed(uses, slots, load=40):
    """Run the system: attention until 30, the gate until 33; two slots are for copies."""
    costs = FlatCosts(prices(load=load))
    model = model_of(ONE, uses)
    return run(LlamaCppCappedLRU(), model, slots=slots, passes=len(uses), costs=costs)


def test_an_upload_is_used_two_steps_after_its_miss():
    # A pass with two misses takes 155 (33, 110 on the host, 4, 2, 6).
    ran = timed([[[(0, 1)]]] * 4, slots=4)
    # The copies of 1 and then 0 begin at the end of the first pass, and end within the second.
    assert of(ran, OpKind.LOAD) == [(0, (1,), 155, 195), (0, (0,), 195, 235)]
    assert of(ran, OpKind.EXPERT) == [
        (0, (0, 1), 33, 143),
        (0, (0, 1), 188, 298),  # 1 came at 195
        (0, (0, 1), 343, 363),  # on the device: 20
        (0, (0, 1), 404, 424),  # a pass of hits takes 33 + 20 + 2 + 6 = 61
    ]
    assert ran.counts["prefill"].uploaded == 2


def test_an_expert_that_is_complete_and_not_published_is_computed_on_the_host():
    # A copy takes 10: 1 is complete at 165, before the gate at 188.
    ran = timed([[[(0, 1)]]] * 3, slots=4, load=10)
    assert of(ran, OpKind.LOAD) == [(0, (1,), 155, 165), (0, (0,), 165, 175)]
    assert [row[2:] for row in of(ran, OpKind.EXPERT)][1:] == [(188, 208), (249, 269)]


def test_the_victim_of_an_upload_leaves_at_the_end_of_the_step():
    ran = timed([[[(0, 1)]], [[(0, 1)]], [[(2, 1)]], [[(0, 1)]]], slots=4)
    # 1 was published before 0, and is used in the third pass; so 0 leaves for 2.
    assert evicted(ran)[:3] == [(1, None), (0, None), (2, 0)]


@pytest.mark.parametrize(
    ("gib", "n", "share"),
    [
        # 24 of non-expert weights; experts of 1 GiB; three slots for copies, and one of each layer
        # for misses.
        (24 + 3 + 2 + 8, None, 4),
        (24 + 3 + 2 + 7, None, 3),
        (24 + 3 + 2 + 8, 4, 4),
        (24 + 3 + 2 + 8, 1, 1),
        (24 + 3 + 1, None, 0),
        (24 + 90, 99, 8),
    ],
)
def test_each_layer_has_n_slots(gib, n, share):
    place = LayerSlots(n=n)
    assert place.most_slots(MODEL) is None
    offered = Budget(gib * 2**30, (10 * 2**30,) * 2, 0, 4 * 2**30, 0, 2**30)
    assert [*place.homes(MODEL, offered)] == ["device"] * 2
    assert (place.share, place.most_slots(MODEL)) == (share, 2 * share + 3)
    assert place.place(MODEL, share, "global") == ()
    assert place.flags(MODEL).startswith(f"--moe-expert-cache {share} ")


def test_more_slots_than_fit_are_refused():
    offered = Budget((24 + 3 + 2 + 7) * 2**30, (10 * 2**30,) * 2, 0, 4 * 2**30, 0, 2**30)
    with pytest.raises(BudgetError, match=r"place\.n=4: 2 layers have no room .* that fit are 3"):
        LayerSlots(n=4).homes(MODEL, offered)


def test_the_system_and_its_policies():
    made = build("llamacpp-capped-lru", {"admit.uploads_per_layer": "3"})
    assert type(made) is LlamaCppCappedLRU
    assert (made.overlap, made.admit.uploads_per_layer, made.assign.max_batch) == (True, 3, 4)
    assert type(made.evict) is LayerLRU
    # With other policies residents are served, and every layer.
    other = build("moe-ondemand", {"assign": "published-copies"})
    other.assign.start(MODEL, ExpertCache(MODEL, 8, "global", Tier("device", 0), 0))
    seen = view([[1 / EXPERTS] * EXPERTS], 2, [3], own=[[3, 1]])
    assert other.assign.assign(seen, active(seen)).device == [3]


def test_large_passes_copy_experts_for_one_use():
    made = Driver(1)
    ids = [[3, 1]] * 32
    seen = view([[1 / EXPERTS] * EXPERTS] * 32, 2, [3], own=ids)
    plan = made.system.assign.assign(seen, active(seen))
    assert plan.load == [Fetch(0, 1, keep=False)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"admit.uploads_per_layer": "-1"}, r"admit\.uploads_per_layer is -1; allowed: 0 or more"),
        ({"admit.max_batch": "0"}, r"admit\.max_batch is 0; allowed: 1 or more"),
        ({"assign.max_batch": "0"}, r"assign\.max_batch is 0; allowed: 1 or more"),
        ({"place.n": "-1"}, r"place\.n is -1; allowed: 0 or more"),
        ({"evict.n": "-1"}, r"evict\.n is -1; allowed: 0 or more"),
    ],
)
def test_options_that_cannot_be(options, said):
    with pytest.raises(UsageError, match=said):
        build("llamacpp-capped-lru", options)
