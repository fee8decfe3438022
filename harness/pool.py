"""Many runs on several processes, their documents in one store."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from harness.spec import RunSpec
from results.store import Store

Document = dict[str, Any]


def run_groups(
    groups: Sequence[Sequence[RunSpec]],
    data_dir: Path | None,
    directory: Path,
    jobs: int,
    progress: Callable[[int, int], None],
    force: bool = False,
) -> list[Document]:
    """Carry out runs, or take them from the store; their documents in the order of the specs.

    Args:
        groups: runs of one group have the same weights and questions; a group is one process's, so
            that prefills and reference logits are computed once.
        directory: the store's; every finished run is in it at once.
        progress: told of finished and of all runs.
        force: run what is stored too.

    Raises:
        MoeBenchError: the first error of a run; finished runs are stored.
    """
    total = sum(map(len, groups))
    found: dict[int, list[Document]] = {}
    spawn = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads
    with ProcessPoolExecutor(max_workers=jobs, mp_context=spawn) as pool:
        places = {
            pool.submit(_run_group, list(group), data_dir, directory, force): place
            for place, group in enumerate(groups)
        }
        try:
            for future in as_completed(places):
                found[places[future]] = future.result()
                progress(sum(map(len, found.values())), total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [document for place in range(len(groups)) for document in found[place]]


def _run_group(
    specs: list[RunSpec], data_dir: Path | None, directory: Path, force: bool
) -> list[Document]:
    from harness.inputs import prepare
    from harness.runner import run
    from harness.shared import SharedWork

    store, shared, documents = Store(directory), None, []
    for spec in specs:
        inputs = prepare(spec, data_dir)
        document = None if force else store.get(inputs.run_id)
        if document is None:
            shared = shared or SharedWork(inputs.checkpoint, remember=True)
            outcome = run(inputs, directory, shared=shared)
            document = outcome.document
            store.put(document)
        documents.append(document)
    return documents
