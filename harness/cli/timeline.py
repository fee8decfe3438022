"""``moebench timeline``: writes Perfetto traces, also for ``moebench run --timeline``."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from moebench.harness import console
from moebench.harness.cli.parameters import DEFAULT_STORE, STORE, argument, option
from moebench.substrate.errors import UsageError

if TYPE_CHECKING:
    from moebench.results.document import Document


def timeline(
    run: Annotated[str, argument("Run id, or its first characters.")],
    out: Annotated[
        Path | None, option("File to write the Perfetto trace to [RUN.trace.json].")
    ] = None,
    store: STORE = DEFAULT_STORE,
) -> None:
    """Write the stored timeline of one token as a Perfetto trace (ui.perfetto.dev).

    moebench run --timeline writes all tokens.
    """
    from moebench.results.store import Store

    kept = Store(store)
    document = kept.find(run)
    run_id = document["run_id"]
    records = kept.timeline(run_id)
    if not records:
        raise UsageError(
            f"run {run_id} kept no timeline; run it again: moebench run --system "
            f"{document['spec'].get('system')} ... --timeline out.json"
        )
    file = out or Path(f"{run_id}.trace.json")
    require_place("--out", file)
    write_timeline(file, records, document)


def require_place(option: str, file: Path) -> None:
    """Refuse an output path that cannot be written, before the run is computed."""
    from moebench.harness.arguments import require_file

    require_file(option, file, folder_exists=True)


def write_timeline(file: Path, records: Iterable[Mapping[str, Any]], document: "Document") -> None:
    """Write a run's records as trace events, and print the path and the number of tokens."""
    import json

    from moebench.reports.formats.trace_events import trace_events
    from moebench.results.document import basis, system_of
    from moebench.substrate.files import write_text

    spec = document["spec"]
    about = {
        "run": document["run_id"], "system": system_of(spec), "model": spec.get("model"),
        "machine": spec.get("machine"), "workload": spec.get("workload"),
        "times": "simulated" if document.get("simulated") else "measured", "badge": basis(document),
    }  # fmt: skip
    write_text(file, json.dumps(trace_events(records, about)))
    tokens = [r["experts"][0] for r in records if r["kind"] == "token"]
    shown = f", {len(tokens)} tokens" if len(tokens) != 1 else f", token {tokens[0]} of a batch"
    console.say(f"timeline in {file} ({about['times']}{shown}): open it at ui.perfetto.dev")
