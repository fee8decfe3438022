"""Figures of SMoE on invented runs, beside a second computation."""

from collections import defaultdict

import numpy as np

from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.smoe import exhibits
from tests.harness.reproduce import test_measures as measures

both = measures.both


def test_the_fit_over_alpha_is_the_parabola_of_least_squares(
    both: tuple[Evidence, Evidence],
) -> None:
    made = exhibits._fig_10(both[0])
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in made.rows:
        found[row["setting"], row["what"]].append((row["alpha"], row["ms"]))
    settings = {setting for setting, _ in found}
    assert settings == {"S1", "S2", "S3"}
    for setting in settings:
        alphas, times = map(np.array, zip(*found[setting, "TPOT"], strict=True))
        assert len(alphas) > 3
        powers = np.stack([np.ones_like(alphas), alphas, alphas**2], axis=1)
        chosen, *_ = np.linalg.lstsq(powers, times, rcond=None)
        fitted = np.array([ms for _, ms in found[setting, "fit of degree 2"]])
        np.testing.assert_allclose(fitted, powers @ chosen, rtol=1e-6)
        assert [alpha for alpha, _ in found[setting, "fit of degree 2"]] == alphas.tolist()
