"""``moebench trace caches``: hit rates of cache policies on a trace, without model or machine."""

from functools import partial
from typing import Annotated, Any

from moebench.harness import console
from moebench.harness.cli.parameters import JSON, argument, option
from moebench.substrate.errors import UsageError

#: Policies that need nothing but the ids of chosen experts.
POLICIES = "lru,lfu,fifo,arc,lecar,lfru,least-stale,belady,belady-bypass"

#: Rows of the table that are a policy with options, which no device can use: the policy and these.
WITH_OPTIONS = {"belady-bypass": ("belady", {"bypass": "true"})}

#: Eighths of a layer's experts that are tried where no sizes are given.
EIGHTHS = (1, 2, 3, 4, 6)


def caches(
    trace: Annotated[str, argument("Folder of a trace, or a shipped trace's name.", metavar="DIR")],
    policies: Annotated[str, option("Cache policies, separated by commas.")] = POLICIES,
    slots: Annotated[
        str | None,
        option("Cache sizes in experts per layer, separated by commas [shares of all experts]."),
    ] = None,
    count: Annotated[
        str, option("How accesses are counted: steps, requests, or statistics (as in trace info).")
    ] = "steps",
    scope: Annotated[
        str | None,
        option("Scope of a cache: layer, or global [global; layer with --count statistics]."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        option("Option of one policy, as policy.option=value; repeatable.", "--set"),
    ] = None,
    sequences: Annotated[
        int | None, option("Number of sequences, from the first [all].", min=1)
    ] = None,
    json_: JSON = False,
) -> None:
    """Count the hits of cache policies on recorded routing; nothing is run or timed."""
    from moebench.substrate.analysis.cache_replay import hit_rate, scope_of, topology
    from moebench.substrate.traces.catalogue import find_trace
    from moebench.substrate.traces.file import open_trace
    from moebench.substrate.traces.replay import routing

    options = _options(set_ or [])
    makers = {name: _maker(name, options) for name in _listed("--policies", policies)}
    _check_used(options, makers)
    counting, asked = _choices(count, scope)
    scoped = asked or scope_of(counting)
    opened = open_trace(find_trace(trace))
    header = opened.header
    sizes = _sizes(slots, header.num_experts)
    wanted = range(len(opened.sequences))[:sequences]
    routed = [routing(opened, one) for one in wanted]
    shape = topology(header.num_moe_layers, header.num_experts, header.top_k)
    rates: dict[str, dict[int, float]] = {}
    with console.progress("counting hits") as progress:
        for done, (name, make) in enumerate(makers.items()):
            rates[name] = {
                size: hit_rate(make, routed, shape, size, counting, scoped) for size in sizes
            }
            progress(done + 1, len(makers))
    if json_:
        about = {
            "trace": trace, "hash": opened.hash, "count": count, "scope": scoped,
            "sequences": len(routed), "experts": header.num_experts, "top_k": header.top_k,
        }  # fmt: skip
        console.print_json(about | {"hit_rates": rates}, sort_keys=False)
        return
    headers = ["policy", "scope", *(f"{size} of {header.num_experts}" for size in sizes)]
    rows = [
        [name, scoped, *(f"{100 * rate:.2f} %" for rate in of.values())]
        for name, of in rates.items()
    ]
    console.table(f"hits on {trace}", headers, rows)
    where = "slots a layer" if scoped == "layer" else "slots a layer, in one pool for all layers"
    console.say(f"{where}; {_MEANT[count]}; {len(routed)} sequences")
    if "belady" in rates or "belady-bypass" in rates:
        console.say(_BELADY_OF_STATISTICS if count == "statistics" else _BELADY)


#: What is counted, in a line.
_MEANT = {
    "steps": "a layer's experts of one pass hit or miss together, a prompt is one pass, hits of "
    "decode, one cache for all sequences, empty at first: as the hit ratio of a run",
    "requests": "each request by itself, prefill and decode, one cache for all sequences, empty "
    "at first",
    "statistics": "each request of decode by itself, a cache for each sequence, whose first misses "
    "fill it and are free: as moebench trace info",
}


#: What the two rows of Belady's MIN are bounds of.
_BELADY = (
    "belady gives each missing expert a slot, as a device must; belady-bypass may keep the old "
    "experts instead: a bound that no device can reach"
)
_BELADY_OF_STATISTICS = (
    "belady is the bound of moebench trace info, which may keep the old experts instead of a "
    "missing one, so that belady-bypass is equal to it"
)


def _listed(option: str, text: str) -> list[str]:
    found = [word.strip() for word in text.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise UsageError(f"{option} {text}: allowed: different values, separated by single commas")
    return found


def _choices(count: str, scope: str | None) -> Any:
    from moebench.substrate.analysis.cache_replay import COUNTINGS

    if count not in COUNTINGS:
        raise UsageError(f"--count {count}: allowed: {', '.join(COUNTINGS)}")
    if scope not in (None, "layer", "global"):
        raise UsageError(f"--scope {scope}: allowed: layer, global")
    return count, scope


def _sizes(text: str | None, experts: int) -> list[int]:
    if text is None:
        return sorted({max(1, experts * eighths // 8) for eighths in EIGHTHS})
    found = []
    for word in _listed("--slots", text):
        if not word.isdecimal() or not 1 <= int(word) <= experts:
            raise UsageError(f"--slots {word}: allowed: whole numbers from 1 to {experts}")
        found.append(int(word))
    return found


def _options(pairs: list[str]) -> dict[str, dict[str, str]]:
    """Return the typed options of each cache policy."""
    from moebench.harness.arguments import parse_overrides

    found: dict[str, dict[str, str]] = {}
    for key, value in parse_overrides(pairs).items():
        policy, dot, option = key.partition(".")
        if not (dot and option):
            raise UsageError(f"--set {key}={value}: expected policy.option=value, as lfu.tie=id")
        found.setdefault(policy, {})[option] = value
    return found


def _maker(name: str, options: dict[str, dict[str, str]]) -> Any:
    """Return a factory of a cache policy, built once to report invalid options."""
    from moebench.systems.options import policy

    kind, fixed = WITH_OPTIONS.get(name, (name, {}))
    make = partial(policy, "evict", kind, fixed | options.get(name, {}))
    made = make()
    if made.reads_scores or made.calibrates:
        needs = "gate scores" if made.reads_scores else "to learn"
        raise UsageError(
            f"--policies {name}: needs {needs}, and ids alone are counted; run the trace instead: "
            "moebench run --trace"
        )
    return make


def _check_used(options: dict[str, dict[str, str]], makers: dict[str, Any]) -> None:
    for name in options:
        if name not in makers:
            raise UsageError(f"--set {name}....: {name} is not among --policies")
