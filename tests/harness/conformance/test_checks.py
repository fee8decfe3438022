"""Checks of the conformance suite on runs that are written out, and what is said of them."""

from types import SimpleNamespace
from typing import Any, Literal

import pytest

from moebench.harness.conformance import suite, swaps
from moebench.harness.conformance.bench import NotChecked
from moebench.harness.conformance.cases import Case, cases, spec_of
from moebench.harness.conformance.host_memory import check_host_memory
from moebench.harness.conformance.invariants import BrokenError
from moebench.harness.conformance.suite import (
    Finding,
    Report,
    _Checked,
    _line,
    check_invariants,
    check_lengths,
    check_lossless,
)
from moebench.harness.conformance.swaps import _check_arrival, check_options, other_values
from moebench.harness.conformance.watch import Claim, LetGo
from moebench.substrate.engine.counts import Counts
from moebench.substrate.engine.records import Generation
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.models.catalogue import model_shape

CASE = Case("mixtral-8x7b", 1, "tight")


def finding(check: str = "runs", state: Any = "failed", **more: Any) -> Finding:
    base: dict[str, Any] = {"system": "mine", "variant": "published", "case": CASE, "detail": "why"}
    return Finding(check=check, state=state, **base | more)


def test_a_finding_says_of_what_and_where_it_is() -> None:
    assert str(finding()) == "mine: runs failed (mixtral-8x7b, batch 1, tight): why"
    assert str(finding(case=None, variant="shipped")) == "mine (shipped): runs failed: why"
    assert Finding("a", "published", "runs", None, "ok").detail == ""


def test_a_report_names_what_failed_and_whether_anything_ran() -> None:
    none, ok, failed = finding(state="n/a"), finding("lossless", "ok"), finding("repeats")
    assert Report([none, ok, failed]).failures == [str(failed)]
    assert not Report([none, ok, failed]).ran
    assert Report([none, finding(state="ok")]).ran
    assert Report([finding()]).ran


def test_an_error_is_one_line_with_its_place_unless_it_is_ours() -> None:
    for ours in (BrokenError("a\n  b"), UsageError("a b"), BudgetError("a b")):
        assert _line(ours) == "a b"
    try:
        int("x")
    except ValueError as error:
        line = _line(error)
    assert line.startswith(
        "ValueError: invalid literal for int() with base 10: 'x' (test_checks.py:"
    )


def checked(bench: Any = None) -> _Checked:
    return _Checked("mine", "shipped", bench)


def test_a_check_is_passed_failed_or_not_applicable() -> None:
    def raises(error: Exception) -> Any:
        def work() -> None:
            raise error

        return work

    made = checked()
    assert made.check("runs", CASE, lambda: None)
    assert not made.check("runs", CASE, raises(NotChecked("no kernels")))
    assert not made.check("options", None, raises(BrokenError("broken")))
    base = ("mine", "shipped")
    assert made.findings == [
        Finding(*base, "runs", CASE, "ok", ""), Finding(*base, "runs", CASE, "n/a", "no kernels"),
        Finding(*base, "options", None, "failed", "broken"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("recorded", "missing", "states"),
    [
        ([1, 1], False, ["ok", "ok", "n/a", "ok"]),
        ([1, 2], False, ["ok", "ok", "n/a", "failed"]),
        ([], True, ["n/a"]),
    ],
)
def test_a_case_is_run_checked_and_repeated(
    recorded: list[int], missing: bool, states: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    left = iter(recorded)

    def run(*given: Any) -> Any:
        asked.append(given)
        if missing:
            raise NotChecked("none")
        return SimpleNamespace(recorded=next(left))

    def lossless(ran: Any, bench: Any) -> None:
        assert (ran.recorded, bench.run) == (1, run)
        raise NotChecked("not claimed")

    monkeypatch.setattr(suite, "check_lengths", lambda ran: None)
    monkeypatch.setattr(suite, "check_invariants", lambda ran: None)
    monkeypatch.setattr(suite, "check_lossless", lossless)
    made = checked(SimpleNamespace(run=run))
    made.check_case(CASE)
    assert [one.state for one in made.findings] == states
    assert [one.check for one in made.findings] == [*suite.CHECKS[1:]][: len(states)]
    assert asked == [("mine", "shipped", CASE)] * max(1, len(recorded))


def ran(
    *texts: list[int], prefill: int = 1, decode: int = 1, replaced: int = 0, lossless: bool = True,
    session: Any = None, **spec: Any,
) -> Any:  # fmt: skip
    counts = {"prefill": Counts(active=prefill, replaced=replaced), "decode": Counts(active=decode)}
    engine = SimpleNamespace(tally=SimpleNamespace(by_phase=counts),
                             system=SimpleNamespace(lossless=lossless))  # fmt: skip
    of = SimpleNamespace(**{"prompts": 3, "new_tokens": 2, "replays": False} | spec)
    session = session or SimpleNamespace()
    session.spec = of
    batches = [Generation([*texts[:2]], 0), Generation([*texts[2:]], 0)]
    return SimpleNamespace(session=session, stage=SimpleNamespace(engine=engine),
                           generations=batches)  # fmt: skip


FULL = ([1, 2], [3, 4], [5, 6])


def said(check: Any, *given: Any) -> str | None:
    try:
        check(*given)
    except BrokenError as error:
        return str(error)
    return None


def test_every_sequence_has_its_tokens_and_both_phases_their_experts() -> None:
    assert said(check_lengths, ran(*FULL)) is None
    assert said(check_lengths, ran(*FULL[:2])) == "2 sequences of 3"
    short = ([1, 2], [3], [5, 6])
    assert said(check_lengths, ran(*short)) == "texts of [2, 1, 2], not 2 tokens"
    assert said(check_lengths, ran(*short, replays=True)) is None
    assert said(check_lengths, ran(*FULL, prefill=0)) == "prefill used no expert"
    assert said(check_lengths, ran(*FULL, decode=0)) == "decode used no expert"


def test_a_lossless_system_writes_what_the_resident_model_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Live:
        spec: Any

    monkeypatch.setattr(suite, "LiveSession", Live)
    bench: Any = SimpleNamespace(resident=lambda session: [[[1, 2], [3, 4]], [[5, 6]]])
    assert said(check_lossless, ran(*FULL, session=Live()), bench) is None
    other = ([1, 2], [3, 4], [5, 7])
    assert said(check_lossless, ran(*other, session=Live()), bench) == (
        "it wrote [[5, 7]], the resident model [[5, 6]]"
    )
    assert said(check_lossless, ran(*other), bench) is None, "a replay writes nothing"
    assert said(check_lossless, ran(*FULL, replaced=2), bench) == "2 experts were replaced"
    with pytest.raises(NotChecked, match="does not claim to be lossless"):
        check_lossless(ran(*FULL, lossless=False), bench)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What each check of a run's invariants is given, by its name."""
    found: dict[str, Any] = {}

    def noted(name: str, answer: Any = None) -> None:
        def check(*given: Any, **more: Any) -> Any:
            found[name] = (*given, more) if more else given
            return answer

        monkeypatch.setattr(suite, name, check)

    for name in ("check_timeline", "check_order", "check_micro_batches", "check_counts",
                 "check_times", "check_host_memory"):  # fmt: skip
        noted(name)
    noted("bound", {"ratio": 1.0, "programs": {"tpot_ms": 9.0}, "clairvoyant_ms": 9.0})
    return found


def finished(checks: dict[str, Any], **options: Any) -> Any:
    """A run with all parts that invariants are checked on."""
    tier = SimpleNamespace(peak_bytes=5, budget_bytes=5)
    low = SimpleNamespace(record_bytes=lambda full, stored: (full, stored))
    system = SimpleNamespace(
        expert_precision=None, forms=[low], evict=SimpleNamespace(writes_back="back"),
        reads_unfinished="unfinished", place=SimpleNamespace(own_forms=()),
    )  # fmt: skip
    cache = SimpleNamespace(
        capacity=7, check_integrity=lambda: checks.setdefault("integrity", ()),
        form_of=lambda key: key // 100, expert_of=lambda key: (key // 10 % 10, key % 10),
    )  # fmt: skip
    engine = SimpleNamespace(
        system=system, cache=cache, homes="homes", tally=SimpleNamespace(by_phase="counts"),
        model=SimpleNamespace(shape=SimpleNamespace(num_experts=8, num_layers=3)),
        transfers=SimpleNamespace(queued_uploads=lambda: "queued"),
    )  # fmt: skip
    spec = SimpleNamespace(**{"expert_dtype": None, "precision": "bf16"} | options)
    timeline = SimpleNamespace(spans="spans")
    stage = SimpleNamespace(
        timeline=timeline, engine=engine, device=tier, host=SimpleNamespace(**vars(tier)),
        machine=SimpleNamespace(host_memory=SimpleNamespace(capacity=4)),
    )  # fmt: skip
    events = [Claim(0, 123, 0, None, True), Claim(0, 45, 1, None, False), LetGo(1, 45)]
    return SimpleNamespace(stage=stage, session=SimpleNamespace(spec=spec, full="full"),
                           events=events, deferred="deferred", generations="ran")  # fmt: skip


def test_all_invariants_of_a_run_are_checked(checks: dict[str, Any]) -> None:
    made = finished(checks)
    check_invariants(made)
    engine = made.stage.engine
    assert checks == {
        "check_timeline": ("spans", made.events, {
            "num_experts": 8, "num_layers": 3, "capacity": 7, "record_bytes": [("full", "bf16")],
            "budget_bytes": 5, "writes_back": "back", "reads_unfinished": "unfinished",
            "queued": "queued", "one_form": False}),
        "check_order": ("spans", "homes", "deferred"), "check_micro_batches": ("spans",),
        "check_counts": ("spans", "counts", "ran"),
        "check_times": (made.stage.timeline, "ran"), "integrity": (),
        "check_host_memory": ("spans", [(1, 2, 3)], 4),
        "bound": (engine, "ran", {"clairvoyant": True}),
    }  # fmt: skip
    made = finished(checks, expert_dtype="int8")
    made.stage.machine.host_memory = None
    made.stage.engine.system.place.own_forms = [1]
    del checks["check_host_memory"]
    check_invariants(made)
    assert "check_host_memory" not in checks
    options = checks["check_timeline"][-1]
    assert (options["record_bytes"], options["one_form"]) == ([("full", "int8")], True)
    made = finished(checks)
    made.stage.engine.system.expert_precision = "4bit"
    check_invariants(made)
    assert checks["check_timeline"][-1]["record_bytes"] == [("full", "4bit")]


@pytest.mark.parametrize("tier", ["device", "host"])
def test_peaks_stay_within_their_budgets(tier: str, checks: dict[str, Any]) -> None:
    made = finished(checks)
    getattr(made.stage, tier).peak_bytes = 6
    assert said(check_invariants, made) == f"more bytes than the {tier} has"


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"ratio": None, "programs": None}, None),
        ({"ratio": 0.999, "programs": None}, "it is faster than its lower bound: 0.999 of it"),
        ({"ratio": 1, "programs": {"tpot_ms": 8.9}, "clairvoyant_ms": 9.0},
         "it is faster than the clairvoyant bound: 8.9 of 9.0 ms"),
    ],
)  # fmt: skip
def test_no_run_is_faster_than_its_bounds(
    found: dict[str, Any], says: str | None, checks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "bound", lambda *given, clairvoyant: found)
    assert said(check_invariants, finished(checks)) == says


def test_a_system_is_checked_in_all_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(suite, "build", lambda name, variant: asked.append((name, variant)))
    monkeypatch.setattr(suite, "bench_in", lambda scratch: f"bench in {scratch}")
    monkeypatch.setattr(suite, "check_options", lambda *given: asked.append(given))
    monkeypatch.setattr(_Checked, "check_case", lambda self, case: asked.append(
        (self.name, self.variant, self.bench, case)))  # fmt: skip
    seen: list[Any] = []
    found = suite.check_system(Case, "shipped", ["a", "b"], lambda *done: seen.append(done),  # type: ignore
                               "here")  # type: ignore[arg-type]  # fmt: skip
    name = "moebench.harness.conformance.cases:Case"
    assert asked == [(name, "shipped"), (name, "shipped"),
                     *((name, "shipped", "bench in here", case) for case in "ab")]  # fmt: skip
    assert seen == [(1, 2), (2, 2)]
    assert found.findings == [Finding(name, "shipped", "options", None, "ok")]
    asked.clear()
    suite.check_system("smoe", cases=[])
    assert asked == [("smoe", "published"), ("smoe", "published")]


# ----------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("kind", "default", "values"),
    [
        (Literal["a", "b", "c"], "b", ["a", "c"]),
        (bool, True, [False]), (bool, None, [True, False]),
        (int, 3, [4]), (int, None, [1]), (float, 2.0, [3.0]), (float, None, [0.5]),
        (int | None, 3, [4]), (int | None, None, [1]), (bool | None, True, [False]),
        (Literal["a", "b"] | None, "a", ["b"]), (str, "a", []),
    ],
)  # fmt: skip
def test_another_value_of_each_type(kind: object, default: object, values: list[object]) -> None:
    assert other_values(kind, default) == values


def test_an_option_arrives_is_described_and_changes_no_other() -> None:
    def made(**options: Any) -> Any:
        return SimpleNamespace(policies={"evict": SimpleNamespace(**options)}, **options)

    before = {"evict": "lru", "evict.n": "1", "n": "1"}

    def check(after: dict[str, str], key: str = "evict.n", now: Any = None) -> str | None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(swaps, "describe", lambda system: after)
            return said(_check_arrival, key, before, made(n=1), now or made(n=2))

    right = before | {"evict.n": "2"}
    assert check(right) is None
    assert check(before | {"n": "2"}, "n") is None
    assert check(right, now=made(n=1)) == "evict.n was set and does not arrive in SimpleNamespace"
    assert check(right | {"evict": "lfu", "new": "1"}) == "evict.n was set and evict, new changed"
    assert check({"evict.n": "2", "n": "1"}) == "evict.n was set and evict changed"
    assert check(before) == "evict.n was set and is described as before"


def test_every_option_is_tried_and_may_be_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = SimpleNamespace(policies={"evict": SimpleNamespace(n=1)}, alpha=None, has_alpha=False)
    options = {SimpleNamespace: {"n": int, "alpha": float}}
    monkeypatch.setattr(swaps, "options_of", lambda kind: options[kind])
    plain.n = 5
    monkeypatch.setattr(
        swaps, "describe", lambda system: {"evict.n": "", "evict.alpha": "", "n": ""}
    )
    plain.policies["evict"].alpha = 2.0
    asked: list[Any] = []
    refusal = ["n is too large"]

    def build(name: str, overrides: Any = None, variant: Any = None) -> Any:
        if overrides is None:
            return plain
        asked.append((overrides, variant))
        if "evict.n" in overrides:
            raise UsageError(refusal[0])
        return "changed"

    monkeypatch.setattr(swaps, "build", build)
    arrived: list[Any] = []
    monkeypatch.setattr(swaps, "_check_arrival", lambda *given: arrived.append(given[0]))
    check_options("mine", "shipped")
    assert asked == [({"n": "6"}, "shipped"), ({"evict.n": "2"}, "shipped"),
                     ({"evict.alpha": "3.0"}, "shipped")]  # fmt: skip
    assert arrived == ["n", "evict.alpha"]
    plain.has_alpha = True
    assert said(check_options, "mine") == "alpha is not described"
    plain.has_alpha, refusal[0] = False, "too large"
    assert said(check_options, "mine") == "evict.n=2 is refused without its name"


# ----------------------------------------------------------------------------- cases and memory


def test_cases_have_memory_for_the_experts_of_one_token_or_for_most() -> None:
    """Mixtral has 32 layers of 8 experts, of which a token uses two each; prompts of 100 tokens."""
    shape = model_shape("mixtral-8x7b")
    expert = 3 * 4096 * 14336 * 2
    for batch in (1, 3):
        kv = batch * 100 * 32 * 2 * 8 * 128 * 2
        for budget, experts in (("tight", 64.5), ("loose", round(0.9 * 256) + 0.5)):
            case = Case("mixtral-8x7b", batch, budget)  # type: ignore[arg-type]
            whole = shape.common_bytes("bf16") + kv + experts * expert
            assert case.device_memory_gib == pytest.approx(whole / 2**30)
    of = cases("a", "b")
    assert [str(case) for case in of[:5]] == [
        "a, batch 1, tight", "a, batch 1, loose", "a, batch 3, tight", "a, batch 3, loose",
        "a, batch 3, tight, replayed",
    ]  # fmt: skip
    assert [case.model for case in of] == ["a"] * 5 + ["b"] * 5


def test_a_case_is_a_short_run_with_quick_training() -> None:
    spec = spec_of("duoserve", "published", Case("mixtral-8x7b", 3, "tight"), replayed=False)
    assert spec.model_dump(exclude_defaults=True, exclude={"overrides"}) == {
        "system": "duoserve", "model": "mixtral-8x7b", "machine": "h200", "workload": "arithmetic",
        "batch": 3, "prompts": 3, "new_tokens": 6, "allow_overcommit": True, "calibrate_texts": 4,
        "device_memory_gib": Case("mixtral-8x7b", 3, "tight").device_memory_gib,
    }  # fmt: skip
    assert set(spec.overrides) == {f"prefetch.{name}" for name in
                                   spec.make_system().policies["prefetch"].quick}  # fmt: skip
    drawn = spec_of("moe-ondemand", "published", Case("mixtral-8x7b", 1, "loose"), replayed=True)
    assert (drawn.routing, drawn.prompts, drawn.batch) == ("drawn", 2, 1)


def span(
    kind: OpKind, expert: int, start: int, end: int, lane: Lane = Lane.H2D, **more: Any
) -> Span:
    return Span(Op(kind, 0, experts=(expert,), **more), lane, start, end)


@pytest.mark.parametrize(
    ("spans", "records", "says"),
    [
        # A read may begin when the last use of another record ends, at the earliest.
        ([span(OpKind.LOAD, 0, 0, 5), span(OpKind.READ, 1, 4, 9), span(OpKind.LOAD, 1, 9, 12)], 1,
         "more records in host memory than fit"),
        ([span(OpKind.LOAD, 0, 0, 5), span(OpKind.READ, 1, 5, 9), span(OpKind.LOAD, 1, 9, 12)], 1,
         None),
        # The device's computations use no record of host memory.
        ([span(OpKind.EXPERT, 0, 0, 5, Lane.DEVICE), span(OpKind.READ, 1, 2, 4),
          span(OpKind.LOAD, 1, 4, 6)], 1, None),
        # Each form and layer has records of its own.
        ([span(OpKind.LOAD, 0, 0, 5), span(OpKind.LOAD, 0, 6, 9, form=1)], 2,
         "not though it was not"),
        # The longer of two uses counts.
        ([span(OpKind.LOAD, 0, 0, 9), span(OpKind.LOAD, 0, 1, 2), span(OpKind.READ, 1, 5, 6),
          span(OpKind.LOAD, 1, 6, 7)], 1, "than fit"),
        # Chunks of a record stay: only room and order are checked.
        ([span(OpKind.LOAD, 5, 0, 9, chunk=(0, 2))], 1, None),
    ],
)  # fmt: skip
def test_host_memory_holds_no_more_than_fits(
    spans: list[Span], records: int, says: str | None
) -> None:
    if says is None:
        check_host_memory(spans, [(0, 0, 0)], records)
    else:
        with pytest.raises(BrokenError, match=says):
            check_host_memory(spans, [(0, 0, 0)], records)
