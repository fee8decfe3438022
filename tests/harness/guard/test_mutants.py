"""Small defects that the guard must catch, and harmless changes that it must accept.

Each is an edit of one function's source.  Defects of the model must exceed the golden outputs'
tolerance, defects of decisions and costs must move a latency of a replayed cell: both hold on any
arithmetic, so each is tried with the sums of the reference and with sums in another order.
"""

import inspect
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from moebench.harness.guard import check, golden
from moebench.harness.guard.check import Guarded, measure, read_references, subset
from moebench.harness.guard.latency import compare_latencies
from moebench.harness.guard.verdicts import Verdict, compare
from moebench.substrate.engine.decisions import LayerView, Routed
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.memory.capacity import Budget
from moebench.substrate.models import attention, rows
from moebench.substrate.models.attention import CacheWindow, GroupedQueryAttention
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.fused import FusedLayer
from moebench.substrate.models.layers import Norm
from moebench.substrate.models.rows import ManyRows
from moebench.systems.compiled import engine
from moebench.systems.daop import PredictedRouting
from moebench.systems.policies.assign import Balanced
from moebench.systems.policies.evict import LowestAverageScore
from moebench.systems.smoe import ExpertCacheRouter, TopScorePrefetch
from tests.harness.guard.other_arithmetic import in_another_order

Change = Callable[[pytest.MonkeyPatch], None]


class Edit(NamedTuple):
    """A change of one function: ``old`` text of its source becomes ``new``."""

    owner: Any
    function: str
    old: str
    new: str

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        """Replace the function for as long as the patch lasts."""
        function = getattr(self.owner, self.function)
        source = textwrap.dedent(inspect.getsource(function))
        assert self.old in source, f"{self.function} has no {self.old!r}"
        found: dict[str, Any] = {}
        code = compile(source.replace(self.old, self.new), "<edited>", "exec")
        exec(code, function.__globals__, found)
        patch.setattr(self.owner, self.function, found[function.__name__])
        # Whoever edits the file has a file that compiled code does not repeat.
        patch.setattr(engine, "repeated", lambda: False)


def expert_5_is_6(patch: pytest.MonkeyPatch) -> None:
    """Give layer 3 the weights of its expert 6 for expert 5."""
    record = Checkpoint.expert_record

    def swapped(self: Checkpoint, layer: int, expert: int, dtype: torch.dtype) -> Tensor:
        return record(self, layer, 6 if (layer, expert) == (3, 5) else expert, dtype)

    patch.setattr(Checkpoint, "expert_record", swapped)


def weights(name: str, change: Callable[[Tensor], Tensor]) -> Change:
    """Return a defect that changes one non-expert tensor."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        common = Checkpoint.common

        def changed(self: Checkpoint, dtype: torch.dtype) -> dict[str, Tensor]:
            found = common(self, dtype)
            return found | {name: change(found[name])}

        patch.setattr(Checkpoint, "common", changed)

    return apply


def of_few_rows(function: str, old: str, new: str) -> Change:
    """Return a defect of the compiled computation of few rows."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        found = pytest.importorskip(
            "moebench.substrate.models.few_rows",
            reason="numba is not installed: pip install '.[fast]'",
        )
        Edit(found.FewRows, function, old, new)(patch)

    return apply


def experts_chosen(count: str) -> Change:
    """Return a defect of how many experts a gate chooses, for many rows and for few."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        Edit(rows, "own_choice", "topk(shape.top_k)", f"topk({count})")(patch)
        if find_spec("numba") is not None:
            of_few_rows("own_choice", "self._shape.top_k)", f"self._{count})")(patch)

    return apply


def degraded_twice(patch: pytest.MonkeyPatch) -> None:
    """Let SMoE's router substitute in what it has substituted already."""
    route = ExpertCacheRouter.route

    def twice(self: ExpertCacheRouter, view: LayerView) -> Routed:
        once = route(self, view)
        before, view.topk_ids_TK, view._topk = view.topk_ids_TK, once.ids_TK, None
        again = route(self, view)
        view.topk_ids_TK, view._topk = before, None
        return again

    patch.setattr(ExpertCacheRouter, "route", twice)


QWEN, MIXTRAL = "qwen2-57b-a14b", "mixtral-8x7b"

#: Defects of the model, and the scale model in which each shows.
MODEL: dict[str, tuple[str, Change]] = {
    "expert swapped in one layer": (QWEN, expert_5_is_6),
    "gate x 1.01 in one layer": (QWEN, weights("layers.3.router", lambda w: w * 1.01)),
    "gate x 1.01 in the last layer": (MIXTRAL, weights("layers.31.router", lambda w: w * 1.01)),
    "one projection x 1.001": (MIXTRAL, weights("layers.5.o", lambda w: w * 1.001)),
    "one row of the head x 1.001": (
        QWEN,
        weights("head", lambda w: torch.cat((w[:7], w[7:8] * 1.001, w[8:]))),
    ),
    "heads rotated by one": (QWEN, weights("layers.2.q", lambda w: w.roll(len(w) // 4, 0))),
    "epsilon of the norms x 10": (
        QWEN,
        Edit(
            Norm, "__init__", "shape.norm_eps if eps is None", "10 * shape.norm_eps if eps is None"
        ),
    ),
    "k + 1": (MIXTRAL, experts_chosen("shape.top_k + 1")),
    "k - 1": (MIXTRAL, experts_chosen("shape.top_k - 1")),
    "renormalisation left out": (
        MIXTRAL,
        Edit(rows, "gate_weights", "weights = weights / total", "pass"),
    ),
    "gate of the shared expert left out": (
        QWEN,
        Edit(FusedLayer, "shared_experts", "self.shared_gate is not None", "False"),
    ),
    "first position forgotten in decode": (
        MIXTRAL,
        Edit(CacheWindow, "__init__", "past = cache[:, :end]", "past = cache[:, start > 0 : end]"),
    ),
    "first position forgotten in few rows": (
        MIXTRAL,
        of_few_rows("attended", "first = 0 if", "first = 1 if"),
    ),
    "shared experts left out of few rows": (
        QWEN,
        of_few_rows("mixed", "_NO_MATRIX if shared_TH is None", "_NO_MATRIX if True"),
    ),
    "rotation of half a head off by one": (
        QWEN,
        Edit(attention, "rotate", "x.shape[-1] // 2", "x.shape[-1] // 2 + 1"),
    ),
    "causal mask left out": (
        MIXTRAL,
        Edit(GroupedQueryAttention, "attend", "mask is None and len(queries) > 1", "False"),
    ),
    "shared experts left out": (QWEN, Edit(Decoder, "_mixed", "self._shared_out", "None")),
}

#: Defects of decisions and costs, and the replayed cell in which each shows.
DECISIONS: dict[str, tuple[str, Change]] = {
    "α ignored": (
        "smoe S3 replayed",
        Edit(ExpertCacheRouter, "route", "view.topk, view.alpha", "view.topk, 0.0"),
    ),
    "α + 2 %": (
        "smoe S3 replayed",
        Edit(ExpertCacheRouter, "route", "view.topk, view.alpha", "view.topk, 1.02 * view.alpha"),
    ),
    "α - 2 %": (
        "smoe S1 drawn",
        Edit(ExpertCacheRouter, "route", "view.topk, view.alpha", "view.topk, 0.98 * view.alpha"),
    ),
    "degraded twice": ("smoe S3 replayed", degraded_twice),
    "highest average score evicted": (
        "smoe S3 replayed",
        Edit(
            LowestAverageScore,
            "victim",
            "least(self._by_key, allowed)",
            "least(-self._by_key, allowed)",
        ),
    ),
    "second-lowest average score evicted": (
        "smoe S3 replayed",
        Edit(
            LowestAverageScore,
            "victim",
            "least(self._by_key, allowed)",
            "least(self._by_key, rest) if (rest := allowed & (np.arange(len(allowed)) "
            "!= least(self._by_key, allowed))).any() else least(self._by_key, allowed)",
        ),
    ),
    "first iterations scaled by one too many": (
        "smoe S3 replayed",
        Edit(LowestAverageScore, "observe", "terms / (iteration + 1)", "terms / (iteration + 2)"),
    ),
    "prefetch one layer late": (
        "smoe S3 replayed",
        Edit(
            TopScorePrefetch,
            "prefetch",
            "fetches(layer, wanted)",
            "fetches(min(layer + 1, view.shape.num_layers - 1), wanted)",
        ),
    ),
    "one expert too few prefetched": (
        "smoe S3 replayed",
        Edit(
            TopScorePrefetch,
            "prefetch",
            "fetches(layer, wanted)",
            "fetches(layer, list(wanted)[:-1])",
        ),
    ),
    "loads counted as host work": (
        "smoe S3 replayed",
        Edit(Balanced, "divide", "t_load += load_ns", "t_load += host_ns"),
    ),
    "one host expert more": (
        "daop S3 replayed",
        Edit(PredictedRouting, "_degraded", "[most:]", "[most + 1 :]"),
    ),
    "cache 2 % larger": (
        "smoe S3 replayed",
        Edit(Budget, "slots", "// self.expert_bytes", "* 51 // (50 * self.expert_bytes)"),
    ),
    "records 2 % larger": (
        "smoe S3 replayed",
        Edit(
            CostModel,
            "moved_bytes",
            "self.form_bytes[op.form]",
            "round(1.02 * self.form_bytes[op.form])",
        ),
    ),
    "records 2 % smaller": (
        "smoe S1 drawn",
        Edit(
            CostModel,
            "moved_bytes",
            "self.form_bytes[op.form]",
            "round(0.98 * self.form_bytes[op.form])",
        ),
    ),
    "3 % less latency": (
        "gpu-only F1 drawn",
        Edit(CostModel, "ns", "self._price", "0.97 * self._price"),
    ),
    "KV cache off by one": (
        "gpu-only S3 replayed lean",
        Edit(CostModel, "_attention_work", "op.context *", "(op.context - 1) *"),
    ),
    "copies submitted for nothing": (
        "smoe S2 drawn",
        Edit(CostModel, "control_ns", "python + self.copy_submit_ns", "python"),
    ),
}


#: Defects of answers alone, and the cell whose answers show it.
ANSWERS: dict[str, tuple[str, Change]] = {
    "worst substitute first": (
        "smoe S3 inflection",
        Edit(ExpertCacheRouter, "route", "key=lambda e: -token", "key=lambda e: token"),
    )
}


#: Changes that compute the same.
HARMLESS: dict[str, Change] = {
    "experts summed in another order": in_another_order,
    "ranks summed one by one": Edit(
        ManyRows,
        "mixed",
        "torch.baddbmm(x[:, None], weights_T1K, outputs_TKH).squeeze(1)",
        "x + (weights_T1K.transpose(1, 2) * outputs_TKH).sum(1)",
    ),
    "norm by its textbook formula": Edit(
        Norm,
        "__call__",
        "y = x.float()",
        "y = x.float(); return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) "
        "+ self.eps)).to(x.dtype) * self.weight",
    ),
    "a comment and no docstring": Edit(
        ExpertCacheRouter,
        "route",
        '"""Return the top-k with substitutes (Algorithm 1) in decode; prefill is exact."""',
        "# substitutes",
    ),
    "a local renamed": Edit(Balanced, "divide", "t_load", "link_busy_ns"),
    "a size computed in two steps": Edit(
        CostModel,
        "moved_bytes",
        "size = self.form_bytes[op.form]",
        "size = 0; size += self.form_bytes[op.form]",
    ),
    "probabilities sorted by another key": Edit(
        ExpertCacheRouter,
        "route",
        "key=lambda e: -token.scores[e]",
        "key=lambda e: (-token.scores[e], e)",
    ),
}


def as_it_is(patch: pytest.MonkeyPatch) -> None:
    """Keep the arithmetic."""


ARITHMETIC = pytest.mark.parametrize("arithmetic", [as_it_is, in_another_order])


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    """Compute with one thread, as the references do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def verdicts(models: list[str], cells: list[str]) -> set[Verdict]:
    """Return the guard's verdicts on models, and on replayed cells against what ships."""
    shipped = subset()
    now = measure(0, Guarded({name: shipped[name] for name in cells})) if cells else {}
    known = read_references(check.REFERENCES, "")
    found = compare_latencies(now, known)
    assert len(found) == len(cells)
    return {one.verdict for one in [*golden.check_golden(models), *found]}


@pytest.mark.slow
@ARITHMETIC
@pytest.mark.parametrize("defect", MODEL)
def test_a_defect_of_the_model_is_caught(
    defect: str, arithmetic: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, change = MODEL[defect]
    arithmetic(monkeypatch)
    change(monkeypatch)
    assert verdicts([name], []) == {Verdict.REGRESSED}


@pytest.mark.slow
@ARITHMETIC
@pytest.mark.parametrize("defect", DECISIONS)
def test_a_defect_of_decisions_or_costs_is_caught(
    defect: str, arithmetic: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, change = DECISIONS[defect]
    arithmetic(monkeypatch)
    change(monkeypatch)
    assert verdicts([], [name]) <= {Verdict.REGRESSED, Verdict.IMPROVED}


@pytest.mark.slow
@ARITHMETIC
@pytest.mark.parametrize("defect", ANSWERS)
def test_a_defect_of_answers_is_caught(
    defect: str, arithmetic: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, change = ANSWERS[defect]
    arithmetic(monkeypatch)
    change(monkeypatch)
    check._arithmetic.cache_clear()
    now = measure(0, Guarded({name: subset()[name]}))
    (found,) = compare(now, read_references(check.REFERENCES, ""))
    # Another substitute may by chance be nearer to the lossless model.
    assert found.verdict in (Verdict.REGRESSED, Verdict.IMPROVED)


@pytest.mark.slow
@ARITHMETIC
@pytest.mark.parametrize("change", HARMLESS)
def test_a_harmless_change_passes(
    change: str, arithmetic: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    arithmetic(monkeypatch)
    HARMLESS[change](monkeypatch)
    assert verdicts([MIXTRAL], ["smoe S3 replayed"]) == {Verdict.PASS}


#: Prints the latencies of the replayed cells, and the verdicts on two models.
ELSEWHERE = """
import json
from moebench.harness.guard.check import Guarded, measure, subset
from moebench.harness.guard.golden import check_golden
replayed = {name: spec for name, spec in subset().items() if name.endswith(("replayed", "drawn"))}
models = [found.verdict for found in check_golden(["olmoe-1b-7b"])]
print(json.dumps([measure(0, Guarded(replayed)), models]))
"""


@pytest.mark.slow
def test_another_processors_kernels_change_neither_replayed_latencies_nor_the_model() -> None:
    kernels = {
        "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX X86_V3 X86_V4",
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ELSEWHERE],
        env={**os.environ, **kernels},
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        check=True,
    )
    cells, models = json.loads(done.stdout)
    known = read_references(check.REFERENCES, "")
    assert len(cells) > 20
    assert {name: cell["latency"] for name, cell in cells.items()} == {
        name: known[name]["latency"] for name in cells
    }
    assert models == ["pass"]
