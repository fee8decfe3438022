"""How the values of engines' flags become fields of a configuration."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from moebench.harness.advise.config_fields import CACHE, KV, Fields, refuse, switch, whole
from moebench.harness.advise.engines import Option
from moebench.harness.advise.placement import Rule

_DEVICE = re.compile(r"[A-Z]\w*(\[.*\])?")

#: Reads an option's value into fields; returns whether the fields say all that was typed.
Read = Callable[[Fields, Option, str, str], bool]


def _as_it_is(fields: Fields, option: Option, where: str, value: str) -> bool:
    assert option.sets is not None
    number = int(value)
    if option.sets == "host_layers":
        number = min(number, len(fields.shape.moe_layers))
    fields.set(option.sets, where, number)
    return True


def _truth(truth: bool, fields: Fields, option: Option, where: str, value: str) -> bool:
    assert option.sets is not None
    fields.fields[option.sets] = truth
    if option.sets == "repacked" and truth and fields.engine == "ik_llama.cpp":
        fields.fields["mapped"] = False  # -rtr also switches the mapping off
    return True


def _number(fields: Fields, option: Option, where: str, value: str) -> bool:
    assert option.sets is not None
    fields.fields[option.sets] = switch(where, value)
    return True


def _first_layers(fields: Fields, option: Option, where: str, value: str) -> bool:
    number = whole(where, value) if value else fields.shape.num_layers
    fields.placement.rules.append(Rule(None, below=number))
    return True


def _all_layers(fields: Fields, option: Option, where: str, value: str) -> bool:
    fields.placement.rules.append(Rule(None))
    return True


def _automatic(fields: Fields, option: Option, where: str, value: str) -> bool:
    fields.automatic = True
    return True


def _tensors(fields: Fields, option: Option, where: str, value: str) -> bool:
    """Read rules such as ``exps=CPU``, divided at every comma as llama.cpp does."""
    for rule in value.split(","):
        pattern, equals, device = rule.partition("=")
        if not equals or not pattern:
            refuse(where, f"{rule!r} is not PATTERN=DEVICE; a comma divides two rules")
        if device.upper() == "CPU" and device != "CPU":
            refuse(where, f"no device {device!r}; nearest: CPU")
        if not _DEVICE.fullmatch(device):
            refuse(where, f"no device {device!r}; allowed: CPU, CUDA0, CUDA1, ...")
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            refuse(where, f"{pattern!r} is no regular expression: {error}")
        fields.placement.rules.append(Rule(compiled, host=device == "CPU"))
    return True


def _layers_on_device(
    output: int, fields: Fields, option: Option, where: str, value: str
) -> bool:  # fmt: skip
    """Read ``-ngl``; ``output`` is 1 if the output counts as a layer, the last one."""
    if value in ("auto", "all") or value.startswith("-"):
        if value not in ("auto", "all", "-1", "-2"):
            refuse(where, "allowed: a number from 0, auto or all")
        fields.layers = value in ("all", "-2")
        return True
    number = whole(where, value) if value else 1
    fields.layers = True
    if number < fields.shape.num_layers + output:
        fields.fields["whole_layers"] = max(0, number - output)
    return True


def _host_experts(fields: Fields, option: Option, where: str, value: str) -> bool:
    number = whole(where, value)
    if number:
        fields.set("resident", where, max(1, fields.shape.num_experts - number))
        fields.host_all()
    else:
        fields.fields.setdefault("host_layers", 0)
    return True


def _device_share(fields: Fields, option: Option, where: str, value: str) -> bool:
    share, layers = float(value), len(fields.shape.moe_layers)
    if not 0 <= share <= 1:
        refuse(where, "allowed: 0 to 1")
    total = int(layers * fields.shape.num_experts * share)
    fields.set("resident", where, total // max(1, layers))
    return True


def _slots(fields: Fields, option: Option, where: str, value: str) -> bool:
    each = whole(where, value) // max(1, len(fields.shape.moe_layers))
    if each or value == "0":
        fields.set("resident", where, min(each, fields.shape.num_experts))
    return True


def _budget(fields: Fields, option: Option, where: str, value: str) -> bool:
    if value in ("auto", "on", "soft"):
        return False
    fields.megabytes = 0 if value == "off" else whole(where, value)
    return True


def _cache(parts: Sequence[str], fields: Fields, option: Option, where: str, value: str) -> bool:
    low = value.lower()
    if low == "auto":
        return True
    if low not in KV and low not in CACHE:
        known = ", ".join(dict.fromkeys((*KV, *CACHE)))
        refuse(where, f"no prediction for a KV cache in {value}; allowed: {known}")
    for part in parts:
        fields.caches[part] = low
    fields.cache_words.append(where)
    return True


def _bits(fields: Fields, option: Option, where: str, value: str) -> bool:
    """Read exllamav3's bits of the cache, one number or those of keys and values."""
    both = value.split(",")
    if len(both) > 2 or not all(re.fullmatch("[2-8]", one) for one in both):
        refuse(where, "allowed: bits from 2 to 8, or KEYS,VALUES")
    for part, one in zip(("keys", "values"), (both[0], both[-1]), strict=True):
        fields.caches[part] = "q4_0" if int(one) < 5 else "q8_0"
    exact = both[0] == both[-1] and both[0] in "48"
    if not exact:
        fields.remarks.append(f"{where}: counted as 4 bits up to 4, else 8 bits")
    return exact


def _level(fields: Fields, option: Option, where: str, value: str) -> bool:
    fields.fields["kv"] = ("f16", "q8_0", "q4_0")[int(value)]
    return True


def _load_mode(fields: Fields, option: Option, where: str, value: str) -> bool:
    if value != "auto":
        fields.fields["mapped"] = value in ("mmap", "mmap+mlock")
    return value in ("none", "auto", "mmap")


def _numa(fields: Fields, option: Option, where: str, value: str) -> bool:
    fields.fields["bound"] = True
    return value == "distribute"


def _pools(fields: Fields, option: Option, where: str, value: str) -> bool:
    number = whole(where, value)
    fields.fields["bound"] = number > 1
    return number < 2


def _reduction(fields: Fields, option: Option, where: str, value: str) -> bool:
    """Read ``-ser K,T``: with T = 1 exactly K experts of each token."""
    said = re.fullmatch(r"(-?\d+),(\d+(?:\.\d+)?)", value)
    if said is None:
        refuse(where, "allowed: K,T with a whole number K, such as 6,1")
    if int(said[1]) <= 0:
        return True
    if float(said[2]) != 1:
        fields.remarks.append(f"{where}: experts of a token vary; counted as the model's")
        return False
    fields.set("experts_used", where, int(said[1]))
    return True


def _metadata(fields: Fields, option: Option, where: str, value: str) -> bool:
    for said in re.finditer(r"\.expert_used_count=int:(\d+)", value):
        fields.set("experts_used", where, int(said[1]))
    return False


READERS: Mapping[str, Read] = {
    "": _as_it_is,
    "yes": partial(_truth, True),
    "no": partial(_truth, False),
    "number": _number,
    "first-layers": _first_layers,
    "all-layers": _all_layers,
    "automatic": _automatic,
    "tensors": _tensors,
    "entries": partial(_layers_on_device, 1),
    "layers": partial(_layers_on_device, 0),
    "host-experts": _host_experts,
    "device-share": _device_share,
    "slots": _slots,
    "budget": _budget,
    "keys": partial(_cache, ("keys",)),
    "values": partial(_cache, ("values",)),
    "both": partial(_cache, ("keys", "values")),
    "dtype": partial(_cache, ("keys", "values")),
    "bits": _bits,
    "level": _level,
    "load-mode": _load_mode,
    "numa": _numa,
    "pools": _pools,
    "reduction": _reduction,
    "metadata": _metadata,
}
