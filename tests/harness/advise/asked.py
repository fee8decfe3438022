"""Questions, models and configurations for tests of engines' flags."""

from functools import cache
from typing import Any

from hypothesis import strategies as st

from moebench.harness.advise.configuration import Configuration
from moebench.harness.advise.engines import engines
from moebench.harness.advise.question import Hardware, Lengths, Question
from moebench.substrate.models.bits import bits_of
from moebench.substrate.models.catalogue import find_shape
from moebench.substrate.models.shape import ModelShape

PC = Hardware(gpu="RTX 3090", cpu="Ryzen 9 5950X", memory="DDR4-3200", ram_gib=64.0)

#: One model without leading dense layers, and one with three.
MODELS = ("gpt-oss-120b", "DeepSeek-R1-0528 671B")


@cache
def shape_of(model: str) -> ModelShape:
    return find_shape(model)


def question(model: str = "gpt-oss-120b", **changes: Any) -> Question:
    given: dict[str, Any] = {
        "model": model, "shape": shape_of(model if model in MODELS else MODELS[0]),
        "quant": "mxfp4", "bits": bits_of("mxfp4"), "hardware": PC,
        "lengths": Lengths(32768, 4096, 512),
    }  # fmt: skip
    return Question(**{**given, **changes})


@st.composite
def configurations(draw: st.DrawFn, key: str, model: str) -> Configuration:
    """Draw a configuration that the engine's flags can say without a rest."""
    fields: dict[str, Any] = {
        name: draw(st.none() | values) for name, values in _values(key, shape_of(model)).items()
    }
    if fields.get("repacked") and key == "ik_llama.cpp":
        fields["mapped"] = False  # -rtr says this, too
    if key == "kt-kernel":
        fields["bound"] = draw(st.booleans())
    fields |= draw(_places(key, shape_of(model)))
    return Configuration(engine=key, **fields)


def _values(key: str, shape: ModelShape) -> dict[str, st.SearchStrategy[Any]]:
    """Return the values that an engine's flags can give to each field."""
    truth = st.just(True)
    values: dict[str, st.SearchStrategy[Any]] = {
        "threads": st.integers(1, 256),
        "micro_batch": st.integers(1, 9000),
        "kv": st.sampled_from(["q8_0", "q4_0"]),
        "bound": truth,
        "mapped": st.just(False),
        "repacked": st.just(False),
    }
    if key == "koboldcpp":
        values |= {"micro_batch": st.sampled_from([64, 512, 4096]), "mapped": truth}
    if key in ("kt-kernel", "vllm"):
        values["kv"] = st.just("fp8")
    if key == "ik_llama.cpp":
        values["repacked"] = truth
    if key in ("ik_llama.cpp", "koboldcpp"):
        values["experts_used"] = st.integers(1, shape.num_experts)
    if key == "exllamav3":
        values["pinned"] = truth
    if key in ("kt-kernel", "freetoken"):
        values["resident"] = st.integers(0, shape.num_experts)
    settable = engines()[key].settable if key != "tinyserve" else frozenset()
    return {name: one for name, one in values.items() if name in settable}


@st.composite
def _places(draw: st.DrawFn, key: str, shape: ModelShape) -> dict[str, Any]:
    """Draw a placement that the engine's flags can say."""
    moe, one = len(shape.moe_layers), engines()[key]
    if key == "exllamav3":
        if draw(st.booleans()):
            return {"host_layers": moe, "resident": draw(st.integers(1, shape.num_experts - 1))}
        return {"host_layers": draw(st.none() | st.integers(1, moe))}
    if "whole_layers" not in one.settable:
        return {"host_layers": moe} if one.hosts_all else {}
    found: dict[str, Any] = {"host_layers": draw(st.none() | st.integers(0, moe))}
    if draw(st.booleans()):
        whole = draw(st.integers(0, shape.num_layers - 1))
        least = sum(layer < shape.num_layers - whole for layer in shape.moe_layers)
        found = {"whole_layers": whole, "host_layers": draw(st.integers(least, moe))}
    if key == "llama.cpp-moe-cache" and found["host_layers"]:
        found["resident"] = draw(st.none() | st.integers(0, shape.num_experts))
    return found
