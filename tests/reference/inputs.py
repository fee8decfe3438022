"""What the reference simulator reads: profiles, software, model shapes and traces, as files."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

#: Size of each unit in bytes, FLOPs, watts and seconds.
UNITS = {
    "GB/s": 1e9, "MB/s": 1e6, "TFLOPS": 1e12, "GFLOPS": 1e9, "GB": 1e9, "GiB": 2.0**30, "W": 1.0,
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "1": 1.0,
}  # fmt: skip

Numbers = dict[str, float]


def _number(stated: Any) -> float:
    if not isinstance(stated, dict):
        return float(stated)  # true or false
    return float(stated["value"]) * UNITS[stated["unit"]]


def numbers(machine: Path, software: Path) -> Numbers:
    """Return all numbers of a profile and a kind of software, by their fields, in base units."""
    profile, costs = (yaml.safe_load(file.read_text()) for file in (machine, software))
    found = {
        f"{part}.{name}": _number(stated)
        for part in ("gpu", "link", "host", "disk")
        for name, stated in profile[part].items()
        if name != "name"
    }
    kind = {name: stated for name, stated in costs.items() if name not in ("name", "description")}
    return found | {f"software.{name}": _number(stated) for name, stated in kind.items()}


@dataclass(frozen=True)
class Shape:
    """Parameters of the parts of a model, counted from its config.json.

    Attributes:
        kv: values of keys and values that one token keeps in a layer.
        dense: parameters of the feed-forward block of each layer without experts.
    """

    layers: int
    hidden: int
    experts: int
    top_k: int
    expert: int
    attention: int
    gate: int
    shared: int
    head: int
    kv: int
    query_width: int
    dense: dict[int, int]

    @classmethod
    def of(cls, path: Path) -> "Shape":
        """Count the parameters of a model of the families that are compared."""
        c = json.loads(path.read_text())
        kind, hidden, heads = c["model_type"], c["hidden_size"], c["num_attention_heads"]
        of_keys = c.get("num_key_value_heads", heads)
        width = c.get("head_dim") or hidden // heads
        attention = 2 * hidden * heads * width + 2 * hidden * of_keys * width
        if kind == "qwen2_moe":  # biases of queries, keys and values
            attention += heads * width + 2 * of_keys * width
        if kind == "olmoe":  # norms of queries and keys
            attention += heads * width + of_keys * width
        if kind == "qwen3_moe":
            attention += 2 * width
        experts = c.get("num_experts") or c.get("num_local_experts") or c["n_routed_experts"]
        inner = c.get("moe_intermediate_size") or c["intermediate_size"]
        shared = c.get("shared_expert_intermediate_size", 0)
        first_dense = range(c.get("first_k_dense_replace", 0))
        return cls(
            layers=c["num_hidden_layers"], hidden=hidden, experts=experts,
            top_k=c["num_experts_per_tok"], expert=3 * hidden * inner, attention=attention,
            gate=hidden * experts, shared=3 * hidden * shared, head=c["vocab_size"] * hidden,
            kv=2 * of_keys * width, query_width=heads * width,
            dense=dict.fromkeys(first_dense, 3 * hidden * c["intermediate_size"]),
        )  # fmt: skip

    @property
    def with_experts(self) -> list[int]:
        """The layers that have experts."""
        return [layer for layer in range(self.layers) if layer not in self.dense]


class Trace:
    """A recording of routing: ids and scores of each row, and what was predicted for it."""

    def __init__(self, folder: Path) -> None:
        def array(name: str) -> np.ndarray | None:
            file = folder / f"{name}.npy"
            return np.load(file, mmap_mode="r") if file.exists() else None

        self.ids, self.scores = array("ids"), array("scores")
        self.predicted = array("predicted_layer")
        self._sequence, self._phase = np.asarray(array("sequence")), np.asarray(array("phase"))
        #: Number of each decoded row among all decoded rows.
        self.decoded = np.cumsum(self._phase) - 1

    def rows(self, sequence: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of a sequence's prompt and of its decoded tokens."""
        rows = np.flatnonzero(self._sequence == sequence)
        decoded = self._phase[rows] == 1
        return rows[~decoded], rows[decoded]
