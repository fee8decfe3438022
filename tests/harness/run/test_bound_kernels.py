"""Bounds hold for systems with other kernels than the run's own: the host's fused ones count."""

from pathlib import Path
from typing import Any

from tests.harness.commands import call

U2 = ("--setting", "U2", "--routing", "drawn", "--prompts", "1", "--new-tokens", "6",
      "--no-interval", "--json")  # fmt: skip


def document(system: str, *more: str) -> dict[str, Any]:
    called = call("run", "--system", system, *U2, *more)
    assert called.code == 0, called.err
    found: dict[str, Any] = called.json
    return found


def test_a_system_that_unpacks_has_the_bounds_of_one_with_fused_kernels(here: Path) -> None:
    unpacks = document("moe-ondemand", "--clairvoyant")["bound"]
    fused = document("moe-ondemand", "--clairvoyant", "--set", "host_kernels=fused")["bound"]
    for name in ("clairvoyant_ms", "information_ms"):
        assert unpacks[name] == fused[name]
    fast = document("ktransformers", "--calibrate-texts", "2")["metrics"]["tpot_ms"]["mean"]
    slow = document("ktransformers", "--calibrate-texts", "2", "--set", "host_kernels=unpacking")
    assert unpacks["information_ms"] <= fast < slow["metrics"]["tpot_ms"]["mean"]
