"""Values of engines' flags, each read into fields of a model of ten layers, two of them dense."""

from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.advise.config_fields import Fields, Shape, switch, whole
from moebench.harness.advise.config_values import READERS
from moebench.substrate.errors import UsageError

SHAPE = Shape((2, 3, 4, 5, 6, 7, 8, 9), 10, 64, 1024.0, 2)


def made(engine: str = "llama.cpp", **more: Any) -> Fields:
    return Fields(engine=engine, shape=SHAPE, **more)


def read(
    reads: str, value: str = "", sets: str | None = None, fields: Any = None
) -> tuple[Any, bool]:
    """Return the fields after a value, and whether they say all of it."""
    found = fields or made()
    option: Any = SimpleNamespace(sets=sets)
    return found, READERS[reads](found, option, f"--flag {value}", value)


@pytest.mark.parametrize(
    ("reads", "value", "sets", "fields", "exact"),
    [
        ("", "5", "threads", {"threads": 5}, True),
        ("", "99", "host_layers", {"host_layers": 8}, True),
        ("yes", "", "pinned", {"pinned": True}, True),
        ("no", "", "mapped", {"mapped": False}, True),
        ("yes", "", "repacked", {"repacked": True}, True),
        ("number", "1", "bound", {"bound": True}, True),
        ("number", "off", "bound", {"bound": False}, True),
        ("host-experts", "24", None, {"resident": 40, "host_layers": 8}, True),
        ("host-experts", "64", None, {"resident": 1, "host_layers": 8}, True),
        ("host-experts", "0", None, {"host_layers": 0}, True),
        ("device-share", "0.5", None, {"resident": 32}, True),
        ("device-share", "1", None, {"resident": 64}, True),
        ("device-share", "0", None, {"resident": 0}, True),
        ("slots", "80", None, {"resident": 10}, True),
        ("slots", "9999", None, {"resident": 64}, True),
        ("slots", "7", None, {}, True),
        ("slots", "0", None, {"resident": 0}, True),
        ("level", "0", None, {"kv": "f16"}, True),
        ("level", "1", None, {"kv": "q8_0"}, True),
        ("level", "2", None, {"kv": "q4_0"}, True),
        ("load-mode", "auto", None, {}, True),
        ("load-mode", "mmap", None, {"mapped": True}, True),
        ("load-mode", "mmap+mlock", None, {"mapped": True}, False),
        ("load-mode", "none", None, {"mapped": False}, True),
        ("load-mode", "mlock", None, {"mapped": False}, False),
        ("numa", "distribute", None, {"bound": True}, True),
        ("numa", "isolate", None, {"bound": True}, False),
        ("pools", "1", None, {"bound": False}, True),
        ("pools", "2", None, {"bound": True}, False),
        ("reduction", "6,1", None, {"experts_used": 6}, True),
        ("reduction", "0,1", None, {}, True),
        ("reduction", "-1,1", None, {}, True),
        ("reduction", "6,0.5", None, {}, False),
        ("metadata", "x.expert_used_count=int:4", None, {"experts_used": 4}, False),
        ("metadata", "x.other=int:4", None, {}, False),
        ("entries", "11", None, {}, True),
        ("entries", "10", None, {"whole_layers": 9}, True),
        ("entries", "0", None, {"whole_layers": 0}, True),
        ("entries", "", None, {"whole_layers": 0}, True),
        ("layers", "10", None, {}, True),
        ("layers", "9", None, {"whole_layers": 9}, True),
        ("layers", "", None, {"whole_layers": 1}, True),
    ],
)  # fmt: skip
def test_a_value_sets_fields(
    reads: str, value: str, sets: str | None, fields: dict[str, Any], exact: bool
) -> None:
    found, said = read(reads, value, sets)
    assert (found.fields, said) == (fields, exact)


def test_repacking_switches_mapping_off_in_one_engine() -> None:
    ik = made("ik_llama.cpp")
    assert read("yes", sets="repacked", fields=ik)[0].fields == {"repacked": True, "mapped": False}
    ik = made("ik_llama.cpp")
    assert read("no", sets="repacked", fields=ik)[0].fields == {"repacked": False}
    assert read("yes", sets="pinned", fields=made("ik_llama.cpp"))[0].fields == {"pinned": True}


@pytest.mark.parametrize(
    ("value", "layers"), [("auto", False), ("all", True), ("-1", False), ("-2", True), ("3", True)]
)
def test_words_for_layers_on_the_device(value: str, layers: bool) -> None:
    assert read("entries", value)[0].layers is layers


@pytest.mark.parametrize(
    ("reads", "value", "host"),
    [
        ("first-layers", "5", 3), ("first-layers", "", 8), ("first-layers", "2", 0),
        ("all-layers", "", 8), ("tensors", r"blk\.[34]\..*exps=CPU", 2),
        ("tensors", r"blk\.4\.=CUDA0,exps=CPU", 7),
    ],
)  # fmt: skip
def test_layers_on_the_host(reads: str, value: str, host: int) -> None:
    found, exact = read(reads, value)
    assert exact
    assert found.finish().configuration.host_layers == host


def test_caches_of_keys_and_values() -> None:
    for reads, value, caches in (
        ("keys", "Q8_0", {"keys": "q8_0"}), ("values", "f16", {"values": "f16"}),
        ("both", "bf16", {"keys": "bf16", "values": "bf16"}),
        ("dtype", "fp8", {"keys": "fp8", "values": "fp8"}),
        ("bits", "4", {"keys": "q4_0", "values": "q4_0"}),
        ("bits", "8,8", {"keys": "q8_0", "values": "q8_0"}), ("both", "auto", {}),
    ):  # fmt: skip
        found, exact = read(reads, value)
        assert (found.caches, exact) == (caches, True), reads
        assert found.remarks == []
    for value, caches in (("5", "q8_0"), ("3", "q4_0")):
        found, exact = read("bits", value)
        assert (found.caches["keys"], exact) == (caches, False)
        assert found.remarks == [f"--flag {value}: counted as 4 bits up to 4, else 8 bits"]
    found, exact = read("bits", "8,4")
    assert (found.caches, exact) == ({"keys": "q8_0", "values": "q4_0"}, False)
    found, _ = read("keys", "q8_0")
    assert found.cache_words == ["--flag q8_0"]
    done = found.finish()
    assert done.configuration.kv == "f16", "values without a flag are in f16"
    assert done.configuration.other == ("--flag q8_0",)
    assert done.remarks == ("KV cache with keys in q8_0 and values in f16: counted as f16",)


def test_budgets_of_a_cache_on_each_card() -> None:
    for value, megabytes, exact in (
        ("auto", None, False), ("soft", None, False), ("on", None, False), ("off", 0, True),
        ("16", 16, True),
    ):  # fmt: skip
        found, said = read("budget", value)
        assert (found.megabytes, said) == (megabytes, exact)
    # 1 MiB on each of two cards holds 2,048 experts of 1 KiB: 256 of each of eight layers.
    found, _ = read("budget", "1")
    assert found.finish().configuration.resident == 64
    few = made(megabytes=1)
    few.shape = SHAPE._replace(expert_bytes=2**20 / 40)
    few.fields["host_layers"] = 4
    assert few.finish().configuration.resident == 20
    none = made(megabytes=1)
    none.fields["host_layers"] = 0
    assert none.finish().configuration.resident == 0
    unknown = made(megabytes=3)
    unknown.shape = SHAPE._replace(expert_bytes=None)
    done = unknown.finish()
    assert (done.configuration.resident, done.configuration.other) == (None, ("--moe-cache 3",))
    assert done.remarks == ("a cache of 3 MiB: experts not counted",)
    off = made(megabytes=0)
    off.shape = SHAPE._replace(expert_bytes=None)
    assert off.finish().configuration.resident == 0


def test_an_engine_that_keeps_all_experts_on_the_host() -> None:
    assert made(hosts_all=True).finish().configuration.host_layers == 8
    assert made().finish().configuration.host_layers is None
    automatic, exact = read("automatic", fields=made(hosts_all=True))
    assert exact
    assert automatic.finish().configuration.host_layers is None
    some, _ = read("entries", "7", fields=made())
    # The first four of ten layers are on the host as a whole: two of them have experts.
    assert some.finish().configuration.host_layers == 2


def test_numbers_have_limits_and_the_context_is_apart() -> None:
    fields = made()
    for name, least, most in (
        ("host_layers", 0, 8), ("whole_layers", 0, 10), ("resident", 0, 64), ("experts_used", 1, 64)
    ):  # fmt: skip
        for value in (least, most):
            fields.set(name, "x", value)
            assert fields.fields[name] == value
        for value in (least - 1, most + 1):
            with pytest.raises(UsageError, match=f"--config x: allowed: {least} to {most}"):
                fields.set(name, "x", value)
    for name in ("threads", "micro_batch"):
        with pytest.raises(UsageError, match="allowed: 1 or more"):
            fields.set(name, "x", 0)
    fields = made()
    fields.set("context", "x", 4096)
    assert fields.finish().context == 4096
    fields = made()
    fields.set("context", "x", 0)
    assert fields.finish().context is None
    fields = made()
    fields.fields |= {"threads": 3, "host_layers": 1, "pinned": True}
    fields.note_unset("an engine", frozenset({"threads"}))
    assert fields.remarks == ["no option of an engine sets pinned"]


@pytest.mark.parametrize(
    ("reads", "value", "said"),
    [
        ("tensors", "exps", "'exps' is not PATTERN=DEVICE"),
        ("tensors", "=CPU", "'=CPU' is not PATTERN=DEVICE"),
        ("tensors", "exps=cpu", "no device 'cpu'; nearest: CPU"),
        ("tensors", "exps=0", "no device '0'; allowed: CPU, CUDA0"),
        ("tensors", "(=CPU", r"'\(' is no regular expression"),
        ("entries", "-3", "allowed: a number from 0, auto or all"),
        ("entries", "x", "'x' is not a whole number from 0"),
        ("device-share", "1.1", "allowed: 0 to 1"), ("device-share", "-0.1", "allowed: 0 to 1"),
        ("both", "q3", "no prediction for a KV cache in q3; allowed: f16, q8_0"),
        ("bits", "9", "allowed: bits from 2 to 8"), ("bits", "4,4,4", "allowed: bits from 2 to 8"),
        ("reduction", "6", "allowed: K,T with a whole number K"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused(reads: str, value: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"--config --flag .*: {said}"):
        read(reads, value)


def test_whole_numbers_and_truths() -> None:
    assert whole("x", " 12 ") == 12
    for text in ("-1", "1.0", "", "x"):
        with pytest.raises(UsageError):
            whole("x", text)
    assert [switch("x", text) for text in ("yes", "TRUE", "on", "1")] == [True] * 4
    assert [switch("x", text) for text in ("no", "False", "off", "0")] == [False] * 4
    with pytest.raises(UsageError, match="allowed: yes or no"):
        switch("x", "maybe")
