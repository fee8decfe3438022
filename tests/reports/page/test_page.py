"""The page: the documents' numbers, nothing fetched, nothing run, nothing of no use."""

import base64
import json
import re
import zlib
from pathlib import Path

import pytest

from moebench.reports.figures import timeline
from moebench.reports.page import runs as single
from moebench.reports.page.page import Contents, packed, render
from moebench.reports.sections.accuracy import CAVEAT, METHOD, views
from moebench.results.document import without_details
from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from tests.reports.alpha import ITEMS, ROWS, gsm8k
from tests.reports.pages import Page
from tests.reports.samples import HOSTILE, RUNS, TIMELINES, compared, hostile_run, run, spans


def made(tmp_path: Path, contents: Contents, source: str = ".moebench") -> Page:
    render(contents, tmp_path / "r.html", source)
    return Page((tmp_path / "r.html").read_text(encoding="utf-8"))


# ---------------------------------------------------------------------- what it holds


def test_the_documents_are_there_once_and_whole(page: Page) -> None:
    assert page.packed["documents"] == RUNS


def test_packed_values_are_compact_json_in_utf_8() -> None:
    text = zlib.decompress(base64.b64decode(packed({"α": [1, "é"], "b": None}))).decode()
    assert text == '{"α":[1,"é"],"b":null}'


def test_answers_to_single_questions_stay_in_the_store(tmp_path: Path) -> None:
    document = run()
    document["accuracy"]["items"] = {"value": [0.0, 1.0]}
    (kept,) = made(tmp_path, Contents([document])).packed["documents"]
    assert kept["accuracy"] == run()["accuracy"]
    assert "items" in document["accuracy"], "the caller's own document is untouched"


def test_a_picture_comes_back_as_its_spans(page: Page) -> None:
    picture, _, nothing = page.packed["pictures"]
    assert nothing is None
    start, found = 0, []
    for at in range(len(picture["kind"])):
        start += picture["start"][at]
        found.append({
            "lane": picture["lanes"][picture["lane"][at]],
            "kind": picture["kinds"][picture["kind"][at]],
            "layer": picture["layer"][at], "experts": picture["experts"][at],
            "start_us": start / 1000, "end_us": (start + picture["ns"][at]) / 1000,
        })  # fmt: skip
    assert found == [
        span | {end: pytest.approx(span[end], abs=1e-3) for end in ("start_us", "end_us")}
        for span in spans()
    ]


def test_what_has_no_length_is_not_drawn(tmp_path: Path) -> None:
    evicted = {"lane": "h2d", "kind": "evict", "layer": 3, "experts": [1], "instant": True}
    records = [*spans(1), evicted | {"start_us": 5.0, "end_us": 5.0}]
    (picture,) = made(tmp_path, Contents([run()], {}, {run()["run_id"]: records})).packed[
        "pictures"
    ]
    assert len(picture["kind"]) == len(spans(1))
    assert "evict" not in picture["kinds"]


def test_of_many_pictures_one_a_system_and_place_is_kept() -> None:
    from moebench.reports.page.runs import pictured

    runs = compared()
    timelines = {one["run_id"]: spans(1) for one in runs}
    assert all(pictured(runs, timelines))
    kept = [one["run_id"] for one, keep in zip(runs, pictured(runs, timelines, 20), strict=True)
            if keep]  # fmt: skip
    assert len(kept) == 2 * 2 * 3 + 2
    assert all(name.endswith("gsm8k") for name in kept)
    assert sum(pictured(runs, timelines, 3)) == 3


def test_of_a_large_store_one_run_a_system_and_place_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = compared()
    assert single.detailed(many) == [one["run_id"] for one in many]
    monkeypatch.setattr(single, "DETAILED", 15)
    chosen = single.detailed(many)
    assert len(chosen) == 2 * 2 * 3 + 2
    monkeypatch.setattr(single, "DETAILED", 3)
    assert single.detailed(many) == chosen[:3]
    whole = {one["run_id"]: one for one in many if one["run_id"] in chosen}
    found = made(tmp_path, Contents([without_details(one) for one in many], documents=whole))
    documents = dict(zip([one["run_id"] for one in many], found.packed["documents"], strict=True))
    assert {name for name, one in documents.items() if one is not None} == {*chosen}
    figures = {one["id"]: one["v"].keys() for one in found.data["runs"]}
    assert all("ttft_ms" in one for one in figures.values())
    assert {name for name, one in figures.items() if "slots_gb" in one} == {*chosen}


def test_each_run_has_its_command_and_figures_with_the_badge(tmp_path: Path) -> None:
    found = made(tmp_path, Contents(RUNS, {RUNS[0]["run_id"]: "moebench run --x"})).data["runs"]
    assert [one["id"] for one in found] == [one["run_id"] for one in RUNS]
    assert [one["command"] for one in found] == ["moebench run --x", None, None]
    assert [one["badge"] for one in found] == ["estimate", "measured", "estimate"]
    assert found[0]["v"]["tpot_ms"] == "61.23"
    assert "tpot_ms" not in found[2]["v"]


def test_simulated_numbers_are_called_simulated(page: Page) -> None:
    assert "2 simulated" in page.text
    assert "not a measurement on it" in page.text


def test_the_same_runs_give_the_same_page(file: Path, tmp_path: Path) -> None:
    render(Contents(RUNS, timelines=TIMELINES), tmp_path / "again.html", source=".moebench")
    assert (tmp_path / "again.html").read_bytes() == file.read_bytes()


def test_every_lane_and_kind_of_operation_is_known() -> None:
    """One colour each, whatever else is in the figure."""
    assert set(timeline.LANES) == {lane.value for lane in Lane}
    assert set(timeline.KIND_COLOURS) == {kind.value for kind in OpKind}
    assert len(set(timeline.KIND_COLOURS.values())) == len(OpKind)


# ---------------------------------------------------------------------- comparisons


def test_a_view_for_all_workloads_and_for_each(tmp_path: Path) -> None:
    found = made(tmp_path, Contents(compared())).data["views"]
    assert [view["workload"] for view in found] == ["", "facts", "gsm8k"]
    for view, tpot in zip(found, (11.0, 12.0, 10.0), strict=True):
        tables = [table for table in view["tables"] if not table["reason"]]
        assert [table["place"] for table in tables] == [
            f"{setting}, batch {batch}" for setting in ("S1", "S3") for batch in (1, 3)
        ]
        row = next(row for row in view["rows"] if row["system"] == "smoe")
        assert row["v"]["tpot_ms"]["mean"] == tpot
        assert len(row["runs"]) == (2 if view["workload"] == "" else 1)
        marks = tables[0]["marks"]["tpot_ms"]
        assert marks == [["smoe"], ["lru"]]


def test_the_parts_of_a_token_add_up_to_its_time(tmp_path: Path) -> None:
    view = made(tmp_path, Contents(compared())).data["views"][0]
    for row in view["rows"]:
        assert sum(row["parts"].values()) == pytest.approx(row["v"]["tpot_ms"]["mean"])
        # 1000 ms of work, 2500 and 500 ms of waiting.
        shares = {name: ms / row["v"]["tpot_ms"]["mean"] for name, ms in row["parts"].items()}
        assert shares["device busy"] == pytest.approx(0.25)
        assert shares["waits for load"] == pytest.approx(0.625)


def test_tables_that_differ_in_batch_alone_share_a_chart(tmp_path: Path) -> None:
    tables = made(tmp_path, Contents(compared())).data["views"][0]["tables"]
    by_setting = {table["where"]: table["overBatch"] for table in tables}
    assert len(set(by_setting.values())) == 2
    assert all(table["overBatch"] == by_setting[table["where"]] for table in tables)


def test_runs_of_another_version_are_named_and_left_out(tmp_path: Path) -> None:
    old = {"run_id": "0ld", "spec": {"system": "smoe"}, "provenance": {"created": "2024"}}
    page = made(tmp_path, Contents([*compared(), old]))
    assert any("run 0ld lacks" in text for text in page.data["views"][0]["leftOut"])
    assert "0ld" not in [one["id"] for one in page.data["runs"]]


# ---------------------------------------------------------------------- accuracy and α


@pytest.fixture(scope="module")
def alpha_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("alpha") / "report.html"
    render(Contents([run()], accuracy=views(ROWS, ITEMS)), out)
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
    assert "No visible change of the score up to α = 0.35 in 0 of 1 real datasets" in page.text
    assert "computed here" in page.text
    assert not re.search(r">None<", alpha_text)


def test_every_cell_of_the_accuracy_section_is_its_value_rounded(alpha_text: str) -> None:
    found = re.findall(r'<data value="([^"]+)">([^<]+)</data>', alpha_text)
    assert len(found) == 4 * (3 + 3 + 1 + 5)  # passages has neither agreement nor KL
    for exact, printed in found:
        digits = len(printed.partition(".")[2])
        errors = [abs(float(printed) - float(exact) * scale) for scale in (1, 100)]
        assert min(errors) <= 0.5 * 10**-digits + 1e-9, (exact, printed)


def test_the_curves_hold_every_cell(alpha_text: str) -> None:
    drawn = Page(alpha_text).data["drawn"]
    names = [
        f"accuracy-1-{measure}-{kind}" for kind in ("real", "generated")
        for measure in ("score", "agreement", "kl")
    ]  # fmt: skip
    assert list(drawn) == names
    assert [
        (v["alpha"], v["value"], v["value_low"], v["value_high"]) for v in drawn[names[0]]["rows"]
    ] == [(one.alpha, one.score, one.score - 3.5, one.score + 3.5) for one in gsm8k()]
    assert {value["workload"] for value in drawn[names[-1]]["rows"]} == {"facts"}


def test_a_section_without_content_is_not_there(page: Page) -> None:
    assert "accuracy" not in page.attributes("id")
    assert not {"evaluators", "failures", "components", "claims"} & {*page.attributes("id")}
    assert "fidelity" in page.attributes("id")  # its table ships


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
    assert "http" not in json.dumps(page.data["specs"])


def test_the_libraries_are_there_once(text: str) -> None:
    assert text.count("window.vegaEmbed") == 1
    assert len(text) < 1_500_000


def test_hostile_names_are_data_or_text(tmp_path: Path) -> None:
    records = [{**span, "kind": HOSTILE} for span in spans(1)]
    contents = Contents([hostile_run()], {HOSTILE: HOSTILE}, {HOSTILE: records})
    page = made(tmp_path, contents, source=HOSTILE)
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "img" not in [tag for tag, _ in page.tags]
    assert HOSTILE in page.text
    assert page.packed["documents"] == [hostile_run()]
    assert page.packed["pictures"][0]["kinds"] == [HOSTILE]


# ---------------------------------------------------------------------- errors


def test_no_run_says_how_to_make_one(tmp_path: Path) -> None:
    wanted = r"^no runs in x/\.moebench; run: moebench run --system smoe --setting S3"
    with pytest.raises(UsageError, match=wanted):
        render(Contents([]), tmp_path / "r.html", source="x/.moebench")
    assert not (tmp_path / "r.html").exists()


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: Is a directory"):
        render(Contents(RUNS), tmp_path)


def test_every_system_with_a_row_has_a_colour_and_a_shape(tmp_path: Path) -> None:
    data = made(tmp_path, Contents(compared())).data
    rows = [row for view in data["views"] for row in view["rows"] if "missing" not in row]
    assert {row["base"] for row in rows} == {"smoe", "lru", "slow"}
    assert set(data["shapes"]) == {row[key] for row in rows for key in ("base", "line")}


def test_tables_that_differ_in_the_devices_memory_alone_share_a_chart(tmp_path: Path) -> None:
    runs = [one for one in compared() if one["spec"]["setting"] == "S1"]
    more = [
        run(f"more-{n}", **one["spec"], device_memory_gib=24) | {"metrics": one["metrics"]}
        for n, one in enumerate(runs)
    ]
    other = [
        run(f"other-{n}", **one["spec"], software="lean") | {"metrics": one["metrics"]}
        for n, one in enumerate(runs)
    ]
    tables = made(tmp_path, Contents([*runs, *more, *other])).data["views"][0]["tables"]
    by_batch = {
        batch: sorted(table["overRatio"] for table in tables if table["batch"] == batch)
        for batch in (1, 3)
    }
    assert [len(set(series)) for series in by_batch.values()] == [2, 2]
    assert not set(by_batch[1]) & set(by_batch[3])
