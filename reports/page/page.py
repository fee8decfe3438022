"""The report as one HTML page that needs no network and no server.

The page contains its compressed data, the drawing libraries, and small scripts.  Content of run
documents is shown as text, never as markup; the page's security policy forbids all requests.
"""

import base64
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from moebench.reports.compare.conditions import NO_SETTINGS, Settings, lacks
from moebench.reports.figures import comparison
from moebench.reports.figures.style import PALETTE, library, system_colours
from moebench.reports.figures.throughput import throughput as throughput_spec
from moebench.reports.figures.timeline import LANES, SVG_LIMIT, timeline
from moebench.reports.page import runs as single
from moebench.reports.page import sections
from moebench.reports.page.views import views
from moebench.reports.sections import accuracy as alpha
from moebench.reports.sections import batches as over_batch
from moebench.reports.sections import search as of_searches
from moebench.reports.sections.history import CAPTION, Since
from moebench.reports.sections.throughput import Curve
from moebench.results.claims import Exhibit, PaperResult
from moebench.results.document import Document, badge_of
from moebench.results.metrics import METRICS
from moebench.results.searches import Searched
from moebench.results.store import CHANGED, Cell
from moebench.results.store_hints import no_runs
from moebench.substrate.errors import UsageError
from moebench.substrate.files import write_text

TEMPLATES = Path(__file__).parents[1] / "templates"

#: Meaning of each badge.
BADGES = {
    "measured": "wall-clock time on the named machine",
    "emulated link": "a copy thread with a limited rate emulates the link to host memory",
    "noisy": "the times of batches spread by more than a tenth of their median",
    CHANGED: "the stored document was edited after its run",
    "calibrated": "simulated, with a hardware profile fitted to measurements on that machine",
    "datasheet": "simulated, mainly from published figures of the hardware; never run on it",
    "checked": "published measurements of such a system on such a machine exist; the interval "
    "holds the simulator's error on them",
    "estimate": "simulated, mainly from estimates in the hardware profile; never run on it",
}


class Contents(NamedTuple):
    """Contents of a page.  The section of an empty field is omitted.

    Attributes:
        runs: documents in display order.
        commands: command that repeats a run, by its id.
        timelines: span records by run id, for the runs with a timeline excerpt (microseconds).
        accuracy: the accuracy table, from `reports.sections.accuracy.load`.
        failed: cells of sweeps that have no run.
        curves: distributions of decode throughput, from `reports.sections.throughput.load`.
        components: from `substrate.analysis.components.documents`.
        claims: from `results.claims.read`.
        equal_memory: all systems at equal memory, from `results.claims.read_exhibit`.
        settings: what each setting of the papers states, by its name.
        documents: whole documents by id, of the runs that are shown in full; None if ``runs`` are
            whole.
        history: figures over the commits of a repository.
        searches: stored searches for compositions.
        shipped: which of ``accuracy`` and ``claims`` ship with moebench and are not the user's.
    """

    runs: Sequence[Document]
    commands: Mapping[str, str] = {}
    timelines: Mapping[str, list[dict[str, Any]]] = {}
    accuracy: Sequence[alpha.View] = ()
    failed: Sequence[Cell] = ()
    curves: Mapping[str, Curve] = {}
    components: Sequence[Mapping[str, Any]] = ()
    claims: Sequence[PaperResult] = ()
    settings: Settings = NO_SETTINGS
    documents: Mapping[str, Document] | None = None
    history: Since | None = None
    shipped: Collection[str] = ()
    equal_memory: Exhibit | None = None
    searches: Sequence[Searched] = ()


def render(contents: Contents, out: Path, source: str = "the store") -> None:
    """Write the page, creating its folder.

    Args:
        source: name of the store, for the page and the error.

    Raises:
        UsageError: there is no run.
        InputError: the page cannot be written.
    """
    if not contents.runs:
        raise UsageError(no_runs(source))
    text = page(contents, source)
    write_text(out, text)


def page(contents: Contents, source: str) -> str:
    """Return the page as one string; pure."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["groupby_fold"] = sections.by_fold
    whole = [run for run in contents.runs if "evaluation" in run or not lacks(run)]
    badges = {part for run in whole for part in badge_of(run).split(", ")}
    accuracy = list(map(sections.accuracy, range(len(contents.accuracy)), contents.accuracy))
    tables = sections.tables(whole, contents.failed, contents.claims, contents.components,
                             contents.equal_memory)  # fmt: skip
    papers = sections.papers(contents.claims)
    shown = [run if contents.documents is None else contents.documents.get(run["run_id"])
             for run in whole]  # fmt: skip
    drawn = {f["id"]: f for part in accuracy for f in part["figures"]}
    drawn |= {
        one["id"]: {"spec": one["spec"], "rows": None}
        for paper in papers for one in paper["exhibits"] if one["spec"]
    }  # fmt: skip
    history, batches = sections.history(contents.history), sections.batches(whole)
    drawn |= {one["id"]: {"spec": one["spec"], "rows": one["rows"]} for one in history + batches}
    searches = sections.searches(contents.searches)
    drawn |= {one["id"]: {"spec": one["spec"], "rows": one["rows"]} for one in searches}
    drawn |= {
        one["second"]: {"spec": one["second_spec"], "rows": one["second_rows"]} for one in searches
    }
    data = _data(contents, whole) | {"drawn": drawn}
    return environment.get_template("report.html.j2").render(
        source=source,
        count=len(contents.runs),
        simulated=sum(bool(run["simulated"]) for run in whole),
        badges={badge: text for badge, text in BADGES.items() if badge in badges},
        accuracy=accuracy,
        papers=papers,
        history=history,
        history_caption=CAPTION,
        batches=batches,
        batches_caption=over_batch.CAPTION,
        batches_title=over_batch.TITLE,
        searches=searches,
        searches_caption=of_searches.CAPTION,
        searches_title=of_searches.TITLE,
        tables=tables,
        shipped=sections.SHIPPED | {*contents.shipped},
        caveat=alpha.CAVEAT,
        method=alpha.METHOD,
        packed={
            "data": packed(data),
            "documents": packed(single.documents(shown)),
            "pictures": packed(single.pictures(whole, contents.timelines, data["pictured"])),
        },
        library=Markup(library()),  # the pinned package's own script
    )


def _data(contents: Contents, whole: Sequence[Document]) -> dict[str, Any]:
    """Return the data that the page shows at once; it unpacks documents and timelines on demand."""
    at = {run["run_id"]: index for index, run in enumerate(whole)}
    found = views(contents.runs, at, contents.settings)
    in_full = {*(at if contents.documents is None else contents.documents)}
    rows = [row for view in found for row in view["rows"] if "missing" not in row]
    bases = system_colours(dict.fromkeys(row["base"] for row in rows))
    lines = system_colours(dict.fromkeys(row["line"] for row in rows))
    of_bases = {name: colour for name, (colour, _) in bases.items()}
    of_lines = {name: colour for name, (colour, _) in lines.items()}
    return {
        "figures": [
            {name: getattr(metric, name) for name in ("key", "label", "unit", "form", "better")}
            for metric in METRICS
        ],
        "views": found,
        "runs": single.listed(whole, contents.commands, in_full),
        "pictured": single.pictured(whole, contents.timelines),
        "withPicture": [bool(contents.timelines.get(run["run_id"])) for run in whole],
        "speeds": single.speeds(whole, contents.curves),
        "palette": PALETTE,
        "shapes": {name: shape for name, (_, shape) in (bases | lines).items()},
        "parts": list(comparison.PARTS),
        "lanes": LANES,
        "svgLimit": SVG_LIMIT,
        "specs": {
            **{f"trade-{name}": comparison.trade(name, of_bases) for name in comparison.TRADES},
            **{f"over-{name}": comparison.lines(name, of_lines) for name in comparison.OVER},
            "hits": comparison.lines("ratio", of_lines, "hit_ratio"),
            "time-ms": comparison.where_time_goes(share=False),
            "time-share": comparison.where_time_goes(share=True),
            "ablation": comparison.ablation(),
            "bound": comparison.bound(),
            "throughput": throughput_spec(of_lines),
            "timeline": timeline(),
        },
    }


def packed(value: Any) -> str:
    """Return a value as JSON, compressed in a format that browsers decompress."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()
