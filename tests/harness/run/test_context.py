"""`--context`: tokens that the KV cache holds before a prompt, which nothing computes."""

from typing import Any

import pytest

from moebench.harness.run.rules import resolve
from moebench.results.spec import RunSpec
from moebench.substrate.engine.decisions import ForwardPass
from moebench.substrate.errors import UsageError
from moebench.substrate.models.catalogue import find_shape
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.registry import system_class
from tests.harness.commands import call
from tests.substrate.engine.fakes import random_trace, rig, small_shape

MACHINE = "rtx-3090+ryzen-9-5950x+ram=96"
RUN = ("run", "--prompts", "1", "--new-tokens", "3", "--software", "ggml", "--json",
       "--no-interval", "--machine", MACHINE, "--quant", "mxfp4")  # fmt: skip


def spec_of(**given: Any) -> RunSpec:
    return resolve(None, **{"system": "llamacpp", "model": "gpt-oss-120b", "machine": MACHINE,
                            **given})  # fmt: skip


def document(*more: str) -> dict[str, Any]:
    called = call(*RUN, "--model", "gpt-oss-120b", *more)
    assert called.code == 0, called.err
    found: dict[str, Any] = called.json
    return found


def passes(prompt: int, cached: int) -> list[ForwardPass]:
    """Return the passes of two tokens of one text."""
    shape = small_shape()
    trace = random_trace(0, shape, [[prompt]], 2)
    made = rig(system_class("moe-ondemand")(), TracedModel(trace), slots=8)
    made.engine.cached = cached
    found = []
    begin = made.engine._begin_pass

    def kept(*given: Any) -> ForwardPass:
        found.append(begin(*given))
        return found[-1]

    made.engine._begin_pass = kept  # type: ignore[method-assign]
    made.engine.generate([[0] * prompt], 2)
    return found


def test_each_row_attends_to_the_cached_tokens_and_to_those_before_it() -> None:
    """Three rows after 10 tokens: 11 + 12 + 13 products; the decoded row reads 14 tokens."""
    prefill, decode = passes(3, 10)
    assert (prefill.sequences, prefill.rows) == ((3,), 3)
    assert (prefill.context, prefill.pairs) == (13, 36)
    assert (decode.context, decode.pairs) == (14, 14)
    prefill, decode = passes(3, 0)
    assert (prefill.context, prefill.pairs) == (3, 6)
    assert (decode.context, decode.pairs) == (4, 4)


def test_cached_tokens_take_memory_as_far_as_windows_keep_them() -> None:
    """Half of gpt-oss' 36 layers keep 128 tokens; a token of one layer has 2 x 8 x 64 values."""
    shape = find_shape("gpt-oss-120b")
    assert shape.kv_bytes(32_768) == 18 * (32_768 + 128) * 1024 * 2
    short, long = (document("--system", "moe-ondemand", "--context", str(n), "--slots", "500")
                   for n in (1000, 33_768))  # fmt: skip
    more = long["memory"]["offered_device_bytes"] - short["memory"]["offered_device_bytes"]
    assert more == 32_768 * 18 * 1024 * 2
    assert long["metrics"]["tpot_ms"]["mean"] > short["metrics"]["tpot_ms"]["mean"]


def test_a_context_is_of_replays_and_zero_leaves_the_run_as_it_is() -> None:
    assert spec_of(context=0) == spec_of()
    assert "context" not in spec_of().model_dump()
    assert spec_of(context=9).model_dump()["context"] == 9
    with pytest.raises(UsageError, match="--context 9: a model that computes would have to read"):
        spec_of(model="olmoe-1b-7b", context=9)
    assert spec_of(model="olmoe-1b-7b", context=9, routing="drawn").context == 9
    with pytest.raises(UsageError, match="--context and --machine local: no text"):
        spec_of(machine="local", context=9)
