"""The page: the document's numbers, each latency with its badge, nothing fetched, nothing run."""

import json
import re
from pathlib import Path

import pytest

from moebench.reports import figures
from moebench.reports.accuracy import CAVEAT, METHOD, views
from moebench.reports.html import render
from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from tests.reports.alpha import ITEMS, ROWS, gsm8k
from tests.reports.pages import Page
from tests.reports.samples import HOSTILE, RUNS, TIMELINES, hostile_run, run, spans

# ---------------------------------------------------------------------- what it says


def test_numbers_equal_the_documents(page: Page) -> None:
    shown = set(page.attributes("value"))
    for document in RUNS:
        metrics = document["metrics"]
        for name in ("tpot_ms", "ttft_ms"):
            assert {str(value) for value in (metrics[name] or {}).values()} <= shown
        for value in (metrics["e2e_ms"], metrics["tokens_per_s"], metrics["load_ms"]):
            assert str(value) in shown
        for value in (document["bound"] or {}).values():
            assert str(value) in shown
        for name, value in (document["accuracy"] or {}).items():
            assert str(value) in shown or name in ("n", "metric")


def test_what_is_printed_is_the_value_rounded(text: str) -> None:
    found = re.findall(r'<data value="([^"]+)">([^<]+)</data>', text)
    assert len(found) > 40
    for exact, printed in found:
        number = float(printed.strip("%×"))
        digits = len(printed.strip("%×").partition(".")[2])
        error = min(abs(number - float(exact) * scale) for scale in (1, 100))
        assert error <= 0.5 * 10**-digits + 1e-9, (exact, printed)


def test_every_latency_stands_beside_its_badge(text: str) -> None:
    latencies = re.findall(r'<span class="latency">(.*?)</span>\s*</span>', text, flags=re.DOTALL)
    with_numbers = [latency for latency in latencies if "<data" in latency]
    assert len(with_numbers) > 15
    for latency in with_numbers:
        assert latency.count("<data") == 1
        assert re.search(r'class="chip (estimate|measured|computed)">', latency)
    for document in RUNS:
        for value in (document["metrics"]["tpot_ms"] or {}).values():
            beside = re.findall(rf'<data value="{value}">[^<]*</data>(.{{0,40}})', text)
            assert beside
            assert all("chip" in rest for rest in beside)
    # No latency goes round the macro: a number before "ms" is always inside one.
    stripped = re.sub(r'<span class="latency">.*?</span>\s*</span>', "", text, flags=re.DOTALL)
    assert not re.search(r"</data>(&nbsp;|\s)ms", stripped)


def test_a_bound_beside_a_measured_time_is_not_called_measured(text: str) -> None:
    section = text[text.index('id="run-2"') : text.index('id="run-3"')]
    bound = section[section.index("Lower bound of TPOT") :]
    assert re.search(r'class="chip (\w+)"', bound).group(1) == "computed"  # type: ignore[union-attr]


def test_simulated_numbers_are_called_simulated(page: Page, text: str) -> None:
    assert "2 simulated" in page.text
    assert "not a measurement on it" in page.text
    assert text.count("Times are simulated (estimate), not measured.") == 2
    ran = "qwen2-57b-a14b&#39;s scale model, 12.5 M parameters"
    assert text.count(f"Times are wall-clock measurements of {ran}.") == 2
    axes = json.dumps(page.specs["run-1-timeline-spec"])
    assert "(ms, simulated)" in axes
    assert "(ms, measured)" in json.dumps(page.specs["run-2-timeline-spec"])


def test_provenance_is_complete(page: Page) -> None:
    for name in (
        "versions.torch", "commit", "profile_hash", "weights_hash", "options.evict",
        "learnt.evict.from", "learnt.place.tokens",
    ):  # fmt: skip
        assert name in page.text
    for value in (
        "2.13.0",
        "trace 0a1b2c",
        "aa" * 32,
        "bb" * 32,
        "cc" * 32,
        "2026-01-01T12:00:00+00:00",
    ):
        assert value in page.text
    assert '"score": 40.62' in page.text  # the JSON below


def test_a_run_without_picture_accuracy_or_bound_says_so(page: Page) -> None:
    assert "No timeline was kept for this run." in page.text
    assert "this run did no mathematics" in page.text
    assert "run-3-timeline-spec" not in page.specs
    assert "None" not in page.text


def test_the_timeline_shows_every_span(page: Page) -> None:
    spec = page.specs["run-1-timeline-spec"]
    (values,) = spec["datasets"].values()
    assert [(v["lane"], v["kind"], v["layer"], v["start"], v["end"]) for v in values] == [
        (s["lane"], s["kind"], s["layer"], s["start_us"], s["end_us"]) for s in spans()
    ]
    assert spec["encoding"]["y"]["scale"]["domain"] == ["device", "h2d", "d2h", "host"]
    assert {t["field"] for t in spec["encoding"]["tooltip"]} >= {"kind", "layer", "experts", "us"}


def test_the_shares_add_up_to_the_documents_times(page: Page) -> None:
    (values,) = page.specs["run-1-shares-spec"]["datasets"].values()
    shown = {(value["lane"], value["part"]): value["ms"] for value in values}
    metrics = RUNS[0]["metrics"]
    assert {lane: ms for (lane, part), ms in shown.items() if part == "busy"} == {
        lane: ms for lane, ms in metrics["lanes"].items() if ms
    }
    stalls = {part.removeprefix("waits for "): ms for (_, part), ms in shown.items()}
    assert {cause: stalls[cause] for cause in metrics["stall_ms"]} == metrics["stall_ms"]


def test_every_lane_and_kind_of_operation_is_known() -> None:
    """One colour each, whatever else is in the figure."""
    assert set(figures.LANES) == {lane.value for lane in Lane}
    assert set(figures.KIND_COLOURS) == {kind.value for kind in OpKind}
    assert len(set(figures.KIND_COLOURS.values())) == len(OpKind)


def test_an_unknown_kind_or_cause_is_drawn_too() -> None:
    strange = [{**span, "kind": "teleport", "lane": "device"} for span in spans(1)]
    assert figures.timeline(strange, True)["encoding"]["color"]["scale"]["domain"] == ["teleport"]
    document = run()
    document["metrics"]["stall_ms"] = {"moon": 1.0, "load": 2.0}
    spec = figures.shares(document)
    assert spec is not None
    scale = spec["encoding"]["color"]["scale"]
    assert scale["domain"] == ["busy", "waits for load", "waits for moon"]
    assert len(set(scale["range"])) == 3


def test_the_same_runs_give_the_same_page(file: Path, tmp_path: Path) -> None:
    render(RUNS, TIMELINES, tmp_path / "again.html", source=".moebench")
    assert (tmp_path / "again.html").read_bytes() == file.read_bytes()


# ---------------------------------------------------------------------- accuracy and α


@pytest.fixture(scope="module")
def alpha_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("alpha") / "report.html"
    render([run()], {}, out, accuracy=views(ROWS, ITEMS))
    return out.read_text(encoding="utf-8")


def test_the_accuracy_section_shows_our_table_and_the_papers(alpha_text: str) -> None:
    page = Page(alpha_text)
    assert CAVEAT in page.text
    assert METHOD in page.text
    assert page.text.index("real datasets") < page.text.index("SMoE, Table IV")
    shown = page.attributes("value")
    for one in ROWS:
        assert str(one.score) in shown
        assert one.kl is None or str(one.kl) in shown
    assert "51.4" in shown  # the paper's, at α = 0
    assert "0.25" in page.text
    assert "No visible change of the score up to α = 0.35 in 0 of 1 real datasets" in page.text
    assert not re.search(r">None<", alpha_text)


def test_every_cell_of_the_accuracy_section_is_its_value_rounded(alpha_text: str) -> None:
    section = alpha_text[alpha_text.index('id="accuracy"') : alpha_text.index('id="run-1"')]
    found = re.findall(r'<data value="([^"]+)">([^<]+)</data>', section)
    assert len(found) == 4 * (3 + 3 + 1 + 5)  # passages has neither agreement nor KL
    for exact, printed in found:
        digits = len(printed.partition(".")[2])
        errors = [abs(float(printed) - float(exact) * scale) for scale in (1, 100)]
        assert min(errors) <= 0.5 * 10**-digits + 1e-9, (exact, printed)


def test_the_curves_hold_every_cell(alpha_text: str) -> None:
    specs = Page(alpha_text).specs
    names = [
        f"accuracy-1-{measure}-{kind}-spec" for kind in ("real", "generated")
        for measure in ("score", "agreement", "kl")
    ]  # fmt: skip
    assert [name for name in specs if name.startswith("accuracy")] == names
    (values,) = specs[names[0]]["datasets"].values()
    assert [(v["alpha"], v["value"], v["low"], v["high"]) for v in values] == [
        (one.alpha, one.score, one.score - 3.5, one.score + 3.5) for one in gsm8k()
    ]
    (kl,) = specs[names[-1]]["datasets"].values()
    assert {value["workload"] for value in kl} == {"facts"}


def test_without_a_table_there_is_no_section(text: str) -> None:
    assert 'id="accuracy"' not in text


# ---------------------------------------------------------------------- what it must not do


def test_nothing_is_fetched(page: Page, text: str) -> None:
    for name in ("src", "href", "action", "data", "poster", "srcset"):
        assert all(value.startswith(("#", "data:")) for value in page.attributes(name)), name
    assert not any(tag in ("iframe", "object", "embed", "base") for tag, _ in page.tags)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in json.dumps(page.specs)


def test_the_libraries_are_there_once(text: str) -> None:
    assert text.count("window.vegaEmbed") == 1
    assert len(text) < 1_500_000


def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    records = [{**span, "kind": HOSTILE} for span in spans(1)]
    render([hostile_run()], {HOSTILE: records}, tmp_path / "r.html", source=HOSTILE)
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    page = Page(text)
    assert "img" not in [tag for tag, _ in page.tags]
    assert page.text.count(HOSTILE) > 8
    assert HOSTILE in json.dumps(page.specs["run-1-timeline-spec"]).replace('\\"', '"')


# ---------------------------------------------------------------------- errors


def test_no_run_says_how_to_make_one(tmp_path: Path) -> None:
    wanted = r"^no runs in x/\.moebench; run: moebench run --system smoe --setting S3$"
    with pytest.raises(UsageError, match=wanted):
        render([], {}, tmp_path / "r.html", source="x/.moebench")
    assert not (tmp_path / "r.html").exists()


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: Is a directory"):
        render(RUNS, {}, tmp_path)
