"""FineMoE's store: cosines and redundancy by brute force, replacement by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.systems.learn.map_store import MapStore, shares, unit

LAYERS, EXPERTS, WIDTH = 3, 4, 2


def cosine(a, b):
    a, b = np.ravel(a).astype(float), np.ravel(b).astype(float)
    return a @ b / np.sqrt((a @ a) * (b @ b))


def drawn(random: np.random.Generator, count: int):
    """Return random embeddings of length 1 and maps of ``count`` iterations."""
    embeddings = unit(random.standard_normal((count, WIDTH)))
    return embeddings, shares(random.random((count, LAYERS, EXPERTS)))


def fill(store: MapStore, embeddings, maps) -> list[int]:
    return [
        store.add(e, m, store.embedding_CH @ e, store.products(m))
        for e, m in zip(embeddings, maps, strict=True)
    ]


@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from([0.0, 0.3, 1.0]))
def test_a_full_store_drops_the_most_redundant(seed, capacity, semantic):
    store = MapStore(capacity, LAYERS, EXPERTS, WIDTH, semantic)
    embeddings, maps = drawn(np.random.default_rng(seed), 12)
    inside: list[int] = []
    for i, at in enumerate(fill(store, embeddings, maps)):
        if len(inside) < capacity:
            assert at == len(inside)
            inside.append(i)
            continue
        redundancy = [
            semantic * cosine(embeddings[i], embeddings[j])
            + (1 - semantic) * cosine(maps[i], maps[j])
            for j in inside
        ]
        assert redundancy[at] == pytest.approx(max(redundancy), abs=1e-5)
        inside[at] = i
    assert store.size == min(12, capacity)
    np.testing.assert_array_equal(store.maps_LCE.transpose(1, 0, 2), maps[inside])
    np.testing.assert_array_equal(store.embedding_CH, embeddings[inside])


@given(st.integers(0, 10_000))
def test_cosines_of_every_prefix(seed):
    store = MapStore(8, LAYERS, EXPERTS, WIDTH, 0.5)
    embeddings, maps = drawn(np.random.default_rng(seed), 6)
    fill(store, embeddings[:5], maps[:5])
    running = maps[5]
    products = np.zeros(8)
    for layer in range(LAYERS):
        products += store.maps_LCE[layer] @ running[layer]
        square = float((running[: layer + 1] ** 2).sum())
        found = store.cosines(products, square, layer)
        expected = [cosine(running[: layer + 1], m[: layer + 1]) for m in maps[:5]]
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_of_equal_cosines_the_newest():
    store = MapStore(3, LAYERS, EXPERTS, WIDTH, 0.5)
    embeddings, maps = drawn(np.random.default_rng(0), 3)
    fill(store, embeddings, maps)
    assert store.nearest(np.array([0.5, 0.9, 0.9 - 1e-8])) == 2
    assert store.nearest(np.array([0.5, 0.9, 0.9 - 1e-3])) == 1
    fill(store, embeddings[:1], maps[:1])  # as before, in its own place, but newer
    assert store.nearest(np.array([0.9, 0.9, 0.9])) == 0


def test_a_copy_is_filled_alone():
    store = MapStore(3, LAYERS, EXPERTS, WIDTH, 0.5)
    embeddings, maps = drawn(np.random.default_rng(0), 2)
    fill(store, embeddings[:1], maps[:1])
    other = store.copy()
    fill(other, embeddings[1:], maps[1:])
    assert (store.size, other.size) == (1, 2)
    assert not store.maps_LCE[:, 1].any()
