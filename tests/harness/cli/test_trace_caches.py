"""`trace caches`: hits without a timeline, equal to the routing statistics."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.cli import trace_caches
from moebench.substrate.analysis import cache_replay
from moebench.substrate.analysis.cache_replay import hit_rate, topology
from moebench.substrate.analysis.statistics import hit_rates, lru_hits
from moebench.substrate.errors import UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces import catalogue, file, replay
from moebench.systems.registry import make
from tests.harness.commands import call, refused

SHIPPED = "qwen2-57b-a14b__arithmetic"
LAYERS, EXPERTS, TOP_K = 3, 16, 2


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of which everything is looked at in no time."""
    out = tmp_path_factory.mktemp("traces") / "drawn"
    called = call(
        "trace", "synthesize", "--model", "olmoe-1b-7b", "--out", out, "--static", "0.5",
        "--ar1", "0.3", "--rho", "0.8", "--sequences", "4", "--prompt-tokens", "8",
        "--new-tokens", "24",
    )  # fmt: skip
    assert called.code == 0, called.err
    return out


def random_sequences(seed: int) -> list[RoutedSequence]:
    draw = np.random.default_rng(seed)
    chosen = draw.random((3, 20, LAYERS, EXPERTS)).argsort(axis=3)[..., :TOP_K]
    return [
        RoutedSequence(ids_TLK, prefill)
        for ids_TLK, prefill in zip(chosen, (4, 0, 20), strict=True)
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("slots", [1, 2, 5, 16])
def test_statistics_are_those_of_trace_info(seed: int, slots: int) -> None:
    sequences, shape = random_sequences(seed), topology(LAYERS, EXPERTS, TOP_K)
    theirs = hit_rates(sequences, [slots])
    for name, options in (("lru", {}), ("lfu", {"tie": "id"}), ("belady", {})):
        ours = hit_rate(
            lambda name=name, options=options: make("evict", name, **options), sequences, shape,
            slots, "statistics",
        )  # fmt: skip
        assert ours == pytest.approx(theirs[name][0], abs=1e-12), name


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_requests_are_a_textbooks_cache(slots: int) -> None:
    sequences, shape = random_sequences(0), topology(LAYERS, EXPERTS, TOP_K)
    joined = np.concatenate([s.ids_TLK for s in sequences])
    hits = sum(lru_hits(joined[:, layer].tolist(), slots) for layer in range(LAYERS))
    found = hit_rate(lambda: make("evict", "lru"), sequences, shape, slots, "requests", "layer")
    assert found == pytest.approx(hits / joined.size)


def test_a_trace_without_decoding_has_only_requests() -> None:
    prompt = [RoutedSequence(random_sequences(0)[0].ids_TLK, 20)]
    shape = topology(LAYERS, EXPERTS, TOP_K)
    for counting in ("steps", "statistics"):
        with pytest.raises(UsageError, match="decodes no token"):
            hit_rate(lambda: make("evict", "lru"), prompt, shape, 4, counting)
    assert hit_rate(lambda: make("evict", "lru"), prompt, shape, 4, "requests") > 0


@pytest.mark.slow
def test_the_command_counts_as_the_statistics_of_trace_info(drawn: Path) -> None:
    info = call("trace", "info", drawn, "--json").json["statistics"]["hit_rates"]
    sizes = {"eighth": 8, "quarter": 16, "half": 32, "three_quarters": 48}
    known = {size: info[share] for share, size in sizes.items()}
    counted = call(
        "trace", "caches", drawn, "--count", "statistics", "--policies", "lru,lfu,belady",
        "--set", "lfu.tie=id",
        "--slots", ",".join(map(str, known)), "--json",
    )  # fmt: skip
    assert counted.code == 0, counted.err
    for size, rates in known.items():
        for policy, rate in rates.items():
            assert counted.json["hit_rates"][policy][str(size)] == pytest.approx(rate, abs=6e-5)


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_the_hit_rate_is_the_hit_ratio_of_a_run(drawn: Path, scope: str) -> None:
    asked = ("trace", "caches", drawn, "--policies", "lru,lfu", "--slots", "16", "--json")
    given = () if scope == "global" else ("--scope", scope)  # global is the default, as of a run
    counted = call(*asked, *given).json
    assert counted["scope"] == scope
    for policy in ("lru", "lfu"):
        ran = call(
            "run", "--system", "moe-ondemand", "--setting", "F1", "--trace", drawn,
            "--capacity", "0.25", "--set", f"evict={policy}", "--set", f"scope={scope}",
            "--no-interval", "--json",
        ).json  # fmt: skip
        ratio = ran["metrics"]["cache_ratio"]
        # A prompt uses more experts of a layer than a layer's 16 slots: then times decide, too.
        close = 1e-6 if scope == "global" else 0.02
        assert counted["hit_rates"][policy]["16"] == pytest.approx(ratio, abs=close)


@pytest.mark.slow
def test_the_hit_rate_of_lfru_is_the_hit_ratio_of_its_system(drawn: Path) -> None:
    # The system begins with an empty cache, as the count does.
    asked = ("trace", "caches", drawn, "--policies", "lfru", "--slots", "16", "--json")
    ran = call(
        "run", "--system", "lfru", "--setting", "F1", "--trace", drawn, "--capacity", "0.25",
        "--set", "scope=global", "--no-interval", "--json",
    ).json  # fmt: skip
    counted = call(*asked).json["hit_rates"]["lfru"]["16"]
    assert counted == pytest.approx(ran["metrics"]["cache_ratio"], abs=1e-6)


def test_statistics_have_a_cache_a_layer_and_the_table_says_so(drawn: Path) -> None:
    for count, scope in (("steps", "global"), ("requests", "global"), ("statistics", "layer")):
        asked = ("trace", "caches", drawn, "--count", count, "--policies", "fifo", "--slots", "8")
        assert call(*asked, "--json").json["scope"] == scope
        assert call(*asked).out.splitlines()[1].split("\t")[:2] == ["fifo", scope]


@pytest.mark.slow
def test_belady_is_best_and_more_slots_hit_more(drawn: Path) -> None:
    called = call("trace", "caches", drawn, "--json")
    rates = called.json["hit_rates"]
    assert list(rates) == [
        "lru", "lfu", "fifo", "arc", "lecar", "lfru", "least-stale", "belady", "belady-bypass",
    ]  # fmt: skip
    for name, of in rates.items():
        best = "belady-bypass" if name == "belady-bypass" else "belady"
        assert all(of[size] <= rates[best][size] + 1e-12 for size in of)
    best = list(rates["belady"].values())
    assert best == sorted(best)
    table = call("trace", "caches", drawn)
    assert table.code == 0
    assert len(table.out.splitlines()) == 1 + len(rates)
    assert "hit or miss together" in table.err
    assert "belady gives each missing expert a slot" in table.err


def test_belady_that_may_keep_no_new_expert_hits_more(drawn: Path) -> None:
    asked = ("trace", "caches", drawn, "--policies", "belady,belady-bypass", "--slots", "8")
    rates = call(*asked, "--json").json["hit_rates"]
    assert rates["belady"]["8"] < rates["belady-bypass"]["8"]
    # It is Belady with an option, which the count of `trace info` has anyway.
    given = ("--policies", "belady", "--set", "belady.bypass=true", "--slots", "8", "--json")
    same = call("trace", "caches", drawn, *given).json["hit_rates"]["belady"]
    assert same == rates["belady-bypass"]
    both = call(*asked, "--count", "statistics")
    rows = [line.split("\t")[2:] for line in both.out.splitlines()[1:]]
    assert rows[0] == rows[1]
    assert "belady-bypass is equal to it" in both.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("lfru", "reading", "vllm", "tinyserve"),
        ("least-stale", "reading", "tinyserve", "layer"),
        ("least-stale", "reading", "layer", "interval"),
        ("dali-window", "share", "0.01", "1"),
    ],
)
def test_rules_of_engines_are_counted_and_their_readings_differ(
    drawn: Path, options: tuple[str, ...]
) -> None:
    name, option, *values = options
    rates = []
    for value in values:
        called = call(
            "trace", "caches", drawn, "--policies", name, "--set", f"{name}.{option}={value}",
            "--slots", "16", "--json",
        )  # fmt: skip
        assert called.code == 0, called.err
        rates.append(called.json["hit_rates"][name]["16"])
    assert rates[0] != rates[1]
    assert all(0 < rate < 1 for rate in rates)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--policies", "nope"), "nope"),
        (("--policies", "lru,,lfu"), "single commas"),
        (("--policies", "lru,lru"), "different values"),
        (("--policies", "score"), "gate scores"),
        (("--policies", "flashmoe"), "to learn"),
        (("--policies", "lru-by-weight"), "gate scores"),
        (("--set", "least-stale.reading=nope"), "least-stale.reading"),
        (("--slots", "0"), "from 1 to 64"),
        (("--slots", "65"), "from 1 to 64"),
        (("--slots", "x"), "from 1 to 64"),
        (("--count", "hits"), "steps, requests, statistics"),
        (("--scope", "all"), "layer, global"),
        (("--count", "statistics", "--scope", "global"), "leave --scope out"),
        (("--set", "tie=id"), "policy.option=value"),
        (("--set", "lfu.tie=nope"), "lfu.tie"),
        (("--set", "lfu.nope=1"), "lfu.nope"),
        (("--policies", "lru", "--set", "lfu.tie=id"), "not among --policies"),
    ],
)
def test_what_cannot_be_is_one_line(drawn: Path, options: tuple[str, ...], said: str) -> None:
    assert said in refused("trace", "caches", drawn, *options)


# ----------------------------------------------------------------------------- with fakes


class Counted:
    """Replaces the trace and the count of hits; a rate is a hundredth of the slots and more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Any] = []
        self.experts = 16
        self.opened: Any = None
        monkeypatch.setattr(catalogue, "find_trace", lambda name: f"found {name}")
        monkeypatch.setattr(file, "open_trace", self.open)
        monkeypatch.setattr(replay, "routing", lambda opened, one: f"sequence {one}")
        monkeypatch.setattr(cache_replay, "topology", lambda *given: given)
        monkeypatch.setattr(cache_replay, "hit_rate", self.rate)

    def open(self, found: str) -> Any:
        assert found == "found a trace"
        header = SimpleNamespace(num_moe_layers=3, num_experts=self.experts, top_k=2)
        return SimpleNamespace(header=header, sequences=["a", "b", "c"], hash="h1")

    def rate(self, make: Any, routed: Any, shape: Any, size: int, counting: str,
             scope: str) -> float:  # fmt: skip
        self.asked.append((make(), routed, shape, size, counting, scope))
        return size / 100 + 0.00126

    def call(self, *more: str) -> Any:
        self.asked.clear()
        called = call("trace", "caches", "a trace", *more)
        assert called.code == 0, called.err
        return called


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def test_every_policy_is_counted_with_every_size(counted: Counted) -> None:
    called = counted.call("--policies", "fifo, lru", "--slots", "2,9", "--scope", "layer")
    assert [(type(made).__name__, size) for made, _, _, size, *_ in counted.asked] == [
        (type(make("evict", name)).__name__, size) for name in ("fifo", "lru") for size in (2, 9)
    ]
    routed = ["sequence 0", "sequence 1", "sequence 2"]
    assert {(*given[1], *given[2], *given[4:]) for given in counted.asked} == {
        (*routed, 3, 16, 2, "steps", "layer")
    }
    assert [line.split("\t") for line in called.out.splitlines()] == [
        ["policy", "scope", "2 of 16", "9 of 16"],
        ["fifo", "layer", "2.13 %", "9.13 %"], ["lru", "layer", "2.13 %", "9.13 %"],
    ]  # fmt: skip
    assert called.err.splitlines()[-1] == (
        "slots a layer; a layer's experts of one pass hit or miss together, a prompt is one pass, "
        "hits of decode, one cache for all sequences, empty at first: as the hit ratio of a run; "
        "3 sequences"
    )


def test_without_sizes_there_are_five_shares_of_the_experts(counted: Counted) -> None:
    """An eighth, a quarter, three eighths, half, and three quarters; at least one."""
    for experts, sizes in ((16, [2, 4, 6, 8, 12]), (64, [8, 16, 24, 32, 48]), (4, [1, 2, 3]),
                           (20, [2, 5, 7, 10, 15])):  # fmt: skip
        counted.experts = experts
        counted.call("--policies", "lru")
        assert [given[3] for given in counted.asked] == sizes


def test_nine_policies_are_counted_and_belady_s_rows_are_explained(counted: Counted) -> None:
    called = counted.call("--slots", "1")
    assert [line.split("\t")[0] for line in called.out.splitlines()[1:]] == [
        "lru", "lfu", "fifo", "arc", "lecar", "lfru", "least-stale", "belady", "belady-bypass",
    ]  # fmt: skip
    belady = (
        "belady gives each missing expert a slot, as a device must; belady-bypass may keep the old "
        "experts instead: a bound that no device can reach"
    )
    assert called.err.splitlines()[-1] == belady
    assert "slots a layer, in one pool for all layers; " in called.err
    for name in ("belady", "belady-bypass"):
        assert counted.call("--slots", "1", "--policies", name).err.splitlines()[-1] == belady
        made = counted.asked[0][0]
        assert (made.bypass is True) == (name == "belady-bypass")
    said = counted.call("--slots", "1", "--count", "statistics", "--policies", "belady").err
    assert said.splitlines()[-2:] == [
        "slots a layer; each request of decode by itself, a cache for each sequence, whose first "
        "misses fill it and are free: as moebench trace info; 3 sequences",
        "belady is the bound of moebench trace info, which may keep the old experts instead of a "
        "missing one, so that belady-bypass is equal to it",
    ]
    requests = counted.call("--slots", "1", "--count", "requests", "--policies", "lru").err
    assert requests.splitlines()[-1] == (
        "slots a layer, in one pool for all layers; each request by itself, prefill and decode, "
        "one cache for all sequences, empty at first; 3 sequences"
    )


def test_the_document_names_what_was_counted(counted: Counted) -> None:
    called = counted.call("--slots", "4", "--policies", "lru", "--sequences", "2", "--json",
                          "--count", "requests")  # fmt: skip
    assert called.json == {
        "trace": "a trace", "hash": "h1", "count": "requests", "scope": "global", "sequences": 2,
        "experts": 16, "top_k": 2, "hit_rates": {"lru": {"4": pytest.approx(0.04126)}},
    }  # fmt: skip
    assert list(called.json) == [
        "trace", "hash", "count", "scope", "sequences", "experts", "top_k", "hit_rates",
    ]  # fmt: skip
    assert counted.asked[0][1] == ["sequence 0", "sequence 1"]
    assert counted.asked[0][4:] == ("requests", "global")
    assert "slots a layer" not in called.err


def test_options_belong_to_the_policies_that_they_name() -> None:
    found = trace_caches._options(["lfu.tie=id", "belady-bypass.x=1", "lfu.decay=0.5"])
    assert found == {"lfu": {"tie": "id", "decay": "0.5"}, "belady-bypass": {"x": "1"}}
    assert trace_caches._options([]) == {}
    for wrong in ("lfu=id", "lfu.=id"):
        with pytest.raises(UsageError) as caught:
            trace_caches._options([wrong])
        assert str(caught.value) == (f"--set {wrong}: expected policy.option=value, as lfu.tie=id")
    with pytest.raises(UsageError) as caught:
        trace_caches._check_used({"lru": {}, "lfu": {"tie": "id"}}, {"lru": None})
    assert str(caught.value) == "--set lfu....: lfu is not among --policies"
    trace_caches._check_used({"lru": {}}, {"lru": None, "lfu": None})


@pytest.mark.parametrize(
    ("text", "sizes"), [("1", [1]), ("16", [16]), (" 3 , 2", [3, 2]), ("0", "0"), ("17", "17"),
                        ("-1", "-1"), ("2.5", "2.5")]
)  # fmt: skip
def test_sizes_are_whole_numbers_up_to_all_experts(text: str, sizes: Any) -> None:
    if isinstance(sizes, list):
        assert trace_caches._sizes(text, 16) == sizes
    else:
        with pytest.raises(UsageError) as caught:
            trace_caches._sizes(text, 16)
        assert str(caught.value) == f"--slots {sizes}: allowed: whole numbers from 1 to 16"


def test_refusals_name_the_option_and_what_is_allowed() -> None:
    with pytest.raises(UsageError) as caught:
        trace_caches._listed("--policies", "lru,,lfu")
    assert str(caught.value) == (
        "--policies lru,,lfu: allowed: different values, separated by single commas"
    )
    for name, needs in (("score", "gate scores"), ("flashmoe", "to learn")):
        with pytest.raises(UsageError) as caught:
            trace_caches._maker(name, {})
        assert str(caught.value) == (
            f"--policies {name}: needs {needs}, and ids alone are counted; run the trace instead: "
            "moebench run --trace"
        )
    for count, scope in (("steps", None), ("requests", "layer"), ("statistics", "global")):
        assert trace_caches._choices(count, scope) == (count, scope)
    with pytest.raises(UsageError) as caught:
        trace_caches._choices("hits", None)
    assert str(caught.value) == "--count hits: allowed: steps, requests, statistics"
    with pytest.raises(UsageError) as caught:
        trace_caches._choices("steps", "all")
    assert str(caught.value) == "--scope all: allowed: layer, global"
