"""The machines and models of the advice grid, beside the parts that they consist of."""

from moebench.harness.advise.grid_axes import CARDS, CONTEXTS, MEMORIES, MODELS, POOLS, machines
from moebench.substrate.machines.parts import memory_of, parts
from moebench.substrate.models.catalogue import model_shape


def test_memories_fill_the_channels_of_their_processors_at_a_rate_of_theirs() -> None:
    for key, memory in MEMORIES.items():
        part = parts()[memory.cpu]
        assert memory.name in part.name
        assert memory.channels == part.channels, key
        said = memory_of(memory.kind)
        assert said is not None
        kind, rate = said
        assert rate <= part.memory[kind], key
        assert key.endswith(f"-{memory.gib}")


def test_cards_and_pools_have_the_memory_that_the_page_names() -> None:
    for shown, part, count, keys in CARDS:
        assert set(keys) <= set(MEMORIES)
        if not part:
            assert (shown, count) == ("no card", 0)
            continue
        assert shown.endswith(f"{parts()[part].memory_gib:g} GB")
        assert shown.startswith(f"{count} × ") is (count > 1)
        assert count in (1, 2)
    for _, part, gib in POOLS:
        least, most = parts()[part].memory_gib
        assert least <= gib <= most


def test_machines_say_what_they_consist_of() -> None:
    found = machines()
    assert len(found) == sum(len(keys) for *_, keys in CARDS) + len(POOLS)
    assert len({machine for machine, _ in found}) == len(found)
    shown = {(machine.card, machine.memory): hardware for machine, hardware in found}
    two = shown["2 × RTX 3090 24 GB", "512 GB DDR4-3200 × 8 (EPYC 7763)"]
    assert (two.gpu, two.cards, two.cpu, two.ram_gib) == ("rtx-3090", 2, "epyc-7763", 512)
    assert (two.memory, two.channels) == ("DDR4-3200", 8)
    none = shown["no card", "128 GB DDR5-5600 × 2 (Ryzen 9 9950X)"]
    assert (none.gpu, none.cards) == ("", 0)
    spark = shown["DGX Spark", "128 GB, shared"]
    assert (spark.gpu, spark.cpu, spark.ram_gib) == ("dgx-spark", "", 128)


def test_models_have_room_for_some_of_the_contexts() -> None:
    assert [*CONTEXTS] == sorted(CONTEXTS)
    for model in MODELS:
        assert model_shape(model).max_positions >= CONTEXTS[0]
