"""Accelerate by hand: the device map, and the order and times of its hooks' copies."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.errors import BudgetError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.substrate.memory.capacity import Budget
from moebench.substrate.models.catalogue import model_names, model_shape
from moebench.systems.accelerate import DeviceMap
from moebench.systems.options import build
from moebench.systems.policies.assign import FUSED
from tests.substrate.engine.fakes import RECORD_BYTES, FlatCosts, prices, rig, small_shape
from tests.substrate.engine.own import model_of, of, run
from tests.substrate.models.checkpoints import HF_FAMILIES, transformers_model
from tests.systems.views import active, shape, view

THREE = small_shape(layers=3)


def budget(device_bytes: int, layers: int = 4, head: int = 5) -> Budget:
    """Return a budget with layers of 10 bytes, experts of 3, and an empty KV cache."""
    return Budget(device_bytes, (10,) * layers, 0, 20, head, 3)


def mapped(device_bytes: int, model=None, **more) -> tuple[DeviceMap, list[str]]:
    model = model or shape(experts=4, top_k=2, layers=4)
    place = DeviceMap()
    return place, list(place.homes(model, budget(device_bytes, model.num_layers, **more)))


# ----------------------------------------------------------------------------- the device map


def test_whole_layers_in_order_and_room_for_one_to_pass_through():
    # Embedding 15, head 5.  A layer is 10 and four experts of 3.  With two layers on the device:
    # 15 + 2 · 22, buffers of 10 and 10 for streamed layers, 12 for the experts that pass.
    place, homes = mapped(15 + 2 * 22 + 20 + 12)
    assert homes == ["device", "device", "stream", "stream", "stream"]
    assert list(place.place(shape(4, 2, 4), 12, "global")) == [
        (layer, e) for layer in (0, 1) for e in range(4)
    ]
    # One byte less, and the second layer leaves.
    place, homes = mapped(15 + 2 * 22 + 20 + 12 - 1)
    assert homes == ["device"] + ["stream"] * 4


def test_a_model_that_fits_needs_no_room_to_pass_through():
    place, homes = mapped(20 + 4 * 22)
    assert homes == ["device"] * 5
    assert len(list(place.place(shape(4, 2, 4), 16, "global"))) == 16
    # A byte less: 15 + 10 + 10 + 12 beside whole layers leave room for two.
    place, homes = mapped(20 + 4 * 22 - 1)
    assert homes == ["device"] * 2 + ["stream"] * 3


def test_a_dense_layer_has_no_experts():
    model = small_shape(layers=4, dense_layers=(0,))
    place, homes = mapped(15 + 10 + 22 + 20 + 12, model)
    assert homes == ["device", "device", "stream", "stream", "stream"]
    assert list(place.place(model, 8, "global")) == [(1, e) for e in range(4)]


def test_the_host_takes_the_whole_layers_that_follow():
    place, _ = mapped(15 + 22 + 20 + 12)
    model = shape(4, 2, 4)
    for records, layers in (11, (1, 2)), (12, (1, 2, 3)), (3, ()), (100, (1, 2, 3)):
        expected = [(layer, e) for layer in layers for e in range(4)]
        assert list(place.keep_on_host(model, records)) == expected


def brute_force(given: Budget, model) -> int:
    """Return the most layers whose bytes, counted one by one, fit."""
    best = 0
    for layers in range(model.num_layers + 1):
        everything = layers == model.num_layers
        bytes_ = given.other_bytes - (0 if everything else given.head_bytes)
        bytes_ += model.num_layers * given.kv_layer_bytes
        passing = [given.head_bytes, *given.layer_bytes[layers:]]
        for layer in range(layers):
            has_experts = layer in model.moe_layers
            bytes_ += given.layer_bytes[layer]
            bytes_ += has_experts * model.num_experts * given.expert_bytes
        if not everything:
            bytes_ += sum(sorted(passing)[-2:]) + model.num_experts * given.expert_bytes
        if bytes_ <= given.device_bytes:
            best = layers
    return best


@given(
    st.integers(0, 400), st.integers(1, 9), st.integers(0, 5), st.integers(0, 30),
    st.lists(st.integers(1, 20), min_size=4, max_size=4),
    st.sampled_from([(), (0,), (0, 2)]),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_the_map_is_the_longest_that_fits(device, expert, kv, head, layers, dense):
    model = small_shape(layers=4, dense_layers=dense)
    room = Budget(device, tuple(layers), kv, 40 + head, head, expert)
    homes = DeviceMap().homes(model, room)
    assert homes.count("device") - (homes[-1] == "device") == brute_force(room, model)
    assert list(homes[:-1]) == sorted(homes[:-1])  # "device" before "stream"


# ----------------------------------------------------------------------------- what hooks bring


def test_fused_experts_come_whole_and_in_order():
    assign = build("accelerate", {"assign.experts": "all"}).assign
    seen = view(np.eye(6)[[1, 4]], 1, resident=[4], layers=3)
    seen.whole_layers = True
    plan = assign.assign(seen, active(seen))
    assert plan.device == [4, 1]
    assert [(f.expert, f.keep) for f in plan.load] == [(e, False) for e in (0, 1, 2, 3, 5)]
    seen.whole_layers = False
    assert [f.expert for f in assign.assign(seen, active(seen)).load] == [1]


@pytest.mark.parametrize("family", HF_FAMILIES)
def test_transformers_fuses_what_it_is_said_to_fuse(family):
    if family not in FUSED:
        pytest.skip("a shape that Transformers emulates")
    with torch.device("meta"):
        model = transformers_model(family)
    tensors = [n for n, _ in model.named_parameters() if ".layers.1." in n and ".experts." in n]
    assert len([n for n in tensors if not n.endswith("bias")]) == 2


def test_families_without_a_class_are_not_fused():
    families = {name: model_shape(name).family for name in model_names()}
    assign = build("accelerate").assign
    apart = {n for n in families if not assign.whole_layers(model_shape(n))}
    assert apart == {"deepseek-moe-16b", "xverse-moe-a4.2b"}


def test_a_layer_that_cannot_pass_through_is_refused():
    model, flat = model_of(THREE, [[[(0, 1)]] * 3]), FlatCosts(prices())
    with pytest.raises(BudgetError, match=r"all 4 experts .* room for 3; .*assign\.experts=active"):
        rig(build("accelerate", {"assign.experts": "all"}), model, slots=3, costs=flat)
    rig(build("accelerate", {"assign.experts": "active"}), model, slots=3, costs=flat)


# ----------------------------------------------------------------------------- a timeline by hand


def started(layers: int, experts: str, uses, **more):
    """Run a model of three layers, of which the first ``layers`` are on the device."""
    made = build("accelerate", {"assign.experts": experts})
    made.place._layers = layers
    homes = ["device"] * layers + ["stream"] * (4 - layers)
    return run(made, model_of(THREE, uses), slots=4 * layers + 4, homes=homes, **more)


def test_streamed_layers_never_overlap_computation():
    # Layer 0 is on the device: 30 + 3 + 20 + 2 = 55.  Layer 1: other weights 55..355,
    # attention and gate until 388, four experts in 160, of which 1 and 2 are computed, and the sum.
    ran = started(1, "all", [[[(0, 1)], [(1, 2)], [(0, 3)]]])
    assert of(ran, OpKind.STREAM) == [
        (1, (), 55, 355), (2, (), 570, 870), (-1, (), 1085, 1385),
    ]  # fmt: skip
    assert of(ran, OpKind.LOAD)[:4] == [(1, (e,), 388 + 40 * e, 428 + 40 * e) for e in range(4)]
    assert of(ran, OpKind.EXPERT) == [
        (0, (0, 1), 33, 53), (1, (1,), 548, 558), (1, (2,), 558, 568),
        (2, (0,), 1063, 1073), (2, (3,), 1073, 1083),
    ]  # fmt: skip
    assert of(ran, OpKind.HEAD) == [(-1, (), 1385, 1391)]
    for before, after in zip(ran.spans, ran.spans[1:], strict=False):
        assert after.start_ns >= before.end_ns


def test_active_experts_come_alone_where_each_is_a_module():
    ran = started(1, "active", [[[(0, 1)], [(1, 2)], [(0, 3)]]])
    assert [row[:2] for row in of(ran, OpKind.LOAD)] == [(1, (1,)), (1, (2,)), (2, (0,)), (2, (3,))]


@pytest.mark.parametrize(("experts", "loads"), [("all", 8), ("active", 4)])
def test_nothing_is_kept_from_token_to_token(experts, loads):
    uses = [[[(0, 1)], [(1, 2)], [(0, 3)]]] * 3
    ran = started(1, experts, uses, passes=3)
    assert len(of(ran, OpKind.LOAD)) == 3 * loads
    moved = 3 * (loads + 3 * 10) * RECORD_BYTES  # two layers' non-expert weights, and the head
    assert ran.timeline.bytes_moved(Lane.H2D) == moved


def test_everything_on_the_device_moves_nothing():
    ran = started(3, "all", [[[(0, 1)], [(1, 2)], [(0, 3)]]])
    assert {s.lane for s in ran.spans} <= {Lane.DEVICE, Lane.H2D}
    assert of(ran, OpKind.LOAD) == []


@pytest.mark.parametrize(
    ("experts", "note"),
    [
        ("all", "hooks bring all 6 experts of a layer: they are one module"),
        ("active", "hooks bring active experts alone: each is a module"),
    ],
)
def test_a_note_says_which_experts_hooks_bring(experts: str, note: str) -> None:
    made = build("accelerate", {"assign.experts": experts})
    assert made.remarks(shape(6, 2, 2), 6) == [note]
