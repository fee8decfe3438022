"""Published recordings of real models in a data folder, cut into texts that a run can replay.

A data folder holds published recordings (`substrate.traces.published`) as
``traces/<model>__<workload>``.  A model has few and long ones, so each sequence is cut into texts:
a prompt and its decoded tokens, of the length of a run.

- A sequence ends where it begins to repeat itself (``loops`` of ``meta.json``).
- The prompt of its first text is the recorded prefill.  If only one phase was recorded, and for
  later texts of the sequence, the first 64 tokens of the text are its prompt: a token's routing
  depends only on earlier tokens.
- The rest of a sequence after its whole texts is left out; a sequence that is too short for a whole
  text is one shorter text.

Texts are listed round-robin over the recordings.  A run replays at most the first half of them; the
others are for systems that are fitted to routing.

Scores that were not recorded are reconstructed (`substrate.traces.scores`), and predictions of the
next layer are synthesized with the published recall of the model's family.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from moebench.substrate.errors import InputError
from moebench.substrate.models.catalogue import model_shape, shape_names
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import LOOKAHEADS
from moebench.substrate.traces.file import Header, Prediction, TraceFile
from moebench.substrate.traces.published import META, model_of, read_published
from moebench.substrate.traces.recipes import recall_of
from moebench.substrate.traces.scores import Reconstruction, spread_of
from moebench.substrate.traces.synthesis import DrawnPredictions
from moebench.substrate.traces.writer import writing

#: Length of a text's prompt in tokens, if no prompt was recorded.
PROMPT_TOKENS = 64

#: The folder of recordings in a data folder.
FOLDER = "traces"


@dataclass(frozen=True, slots=True)
class Recording:
    """One published recording of a model's routing.

    Attributes:
        trace: in memory.
        ends: for each sequence, the number of its tokens before it begins to repeat itself.
    """

    trace: TraceFile
    ends: tuple[int, ...]


class Text(NamedTuple):
    """A replayable part of a recorded sequence: rows of its recording, prompt first."""

    recording: Recording
    rows: np.ndarray
    prompt: int

    @property
    def passes(self) -> int:
        """Number of replayable passes: the prefill and one for each decoded token."""
        return len(self.rows) - self.prompt + 1


def recordings(model: str, data_dir: Path) -> list[Recording]:
    """Return the recordings in a data folder that fit a model's name, layers and experts.

    The name may have a suffix (``mixtral-8x7b-instruct``).  Of recordings with different top-k,
    only those with the largest are returned.

    Raises InputError: there are none, or one is broken.
    """
    shape = model_shape(model)
    folders = [path for path in _folders(data_dir) if _is_of(path, model)]
    found = [r for r in map(_read, folders, [model] * len(folders)) if _fits(r, shape)]
    if not found:
        known = [m for m in shape_names() if any(_is_of(path, m) for path in _folders(data_dir))]
        raise InputError(
            f"no recorded routing of {model} in {data_dir / FOLDER} (there is of: "
            f"{', '.join(known) or 'no model'}); --routing drawn needs none"
        )
    most = max(recording.trace.header.top_k for recording in found)
    return [recording for recording in found if recording.trace.header.top_k == most]


def _folders(data_dir: Path) -> list[Path]:
    return sorted(file.parent for file in (data_dir / FOLDER).glob(f"*/{META}"))


def _is_of(folder: Path, model: str) -> bool:
    name = model_of(folder)
    return name == model or name.startswith(f"{model}-")


def _fits(recording: Recording, shape: ModelShape) -> bool:
    header = recording.trace.header
    layers, experts = len(shape.moe_layers), shape.num_experts
    return (header.num_moe_layers, header.num_experts) == (layers, experts)


def _read(folder: Path, model: str) -> Recording:
    published = read_published(folder, model)
    trace = TraceFile(folder, published.header, published.arrays)
    ends = [len(rows) for rows in trace.sequences]
    for loop in published.meta.get("loops") or ():
        ends[loop["sequence"]] = min(ends[loop["sequence"]], loop["from_token"])
    return Recording(trace, tuple(ends))


# ----------------------------------------------------------------------------- texts


def texts(found: Sequence[Recording], new_tokens: int) -> list[Text]:
    """Return all texts of recordings, with ``new_tokens`` passes if a sequence is long enough.

    Raises InputError: no sequence holds a prompt and a decoded token.
    """
    each = [list(_texts(recording, new_tokens)) for recording in found]
    listed = [text for row in zip_longest(*each) for text in row if text is not None]
    if not listed:
        names = ", ".join(recording.trace.path.name for recording in found)
        raise InputError(f"{names}: no sequence is longer than a prompt of {PROMPT_TOKENS} tokens")
    return listed


def _texts(recording: Recording, new_tokens: int) -> Iterator[Text]:
    trace = recording.trace
    for rows, end, prefill in zip(trace.sequences, recording.ends, trace.prompts, strict=True):
        prompt = prefill if 0 < prefill < len(rows) else PROMPT_TOKENS
        start, length = 0, prompt + new_tokens - 1  # The last new token is not an input.
        while start + length <= end:
            yield Text(recording, rows[start : start + length], prompt)
            start += length
            prompt, length = PROMPT_TOKENS, PROMPT_TOKENS + new_tokens - 1
        if start == 0 and prompt < end:
            yield Text(recording, rows[:end], prompt)


def replayable(listed: Sequence[Text]) -> int:
    """Return the number of texts that a run may replay; the others are for fitting systems."""
    return len(listed) - len(listed) // 2


def workload_of(listed: Sequence[Text]) -> str:
    """Return the joined workload names of the texts' recordings, such as ``math+prose``."""
    return "+".join(trace.header.workload for trace in _traces(listed))


def _traces(listed: Sequence[Text]) -> list[TraceFile]:
    """Return the distinct traces from which texts were cut."""
    return list({text.recording.trace.path: text.recording.trace for text in listed}.values())


# ----------------------------------------------------------------------------- as a trace


def recorded_header(model: str, chosen: Sequence[Text]) -> Header:
    """Return the header of a trace that consists of the chosen texts of one model."""
    used = _traces(chosen)
    first = used[0].header
    orders = {trace.header.ids_order for trace in used}
    reconstruction = Reconstruction(spread_of(model))
    made = f"drawn from the next layer's scores, recall {recall_of(model)} asked"
    notes = [f"{t.header.workload}: {note}" for t in used for note in t.header.notes]
    return Header(
        model=model,
        workload=workload_of(chosen),
        num_moe_layers=first.num_moe_layers,
        num_experts=first.num_experts,
        top_k=first.top_k,
        # Recordings with different orders have only the order by id in common.
        ids_order=orders.pop() if len(orders) == 1 else "id",
        scores=reconstruction.note,
        predictions={kind: Prediction(array="predicted", made=made) for kind in LOOKAHEADS},
        source={trace.header.workload: trace.header.source for trace in used},
        notes=[reconstruction.note, *notes],
    )


def write_texts(model: str, chosen: Sequence[Text], seed: int, out: Path) -> None:
    """Write texts of recordings as a trace, with scores and predictions for every system.

    Args:
        seed: random seed of the predictions.

    Raises UsageError: ``out`` exists.
    """
    header = recorded_header(model, chosen)
    reconstruction = Reconstruction(spread_of(model))
    random = np.random.default_rng(seed)
    experts, top_k = header.num_experts, header.top_k
    predictions = DrawnPredictions(experts, top_k, recall_of(model), spread_of(model))
    with writing(out, header) as writer:
        for number, (recording, rows, prompt) in enumerate(chosen):
            scores_TLE = reconstruction.scores(recording.trace, rows)
            predicted = predictions.of_scores(scores_TLE[prompt:, 1:], random)
            tokens = np.arange(len(rows))
            writer.append(
                ids=recording.trace.ids_TLK[rows], sequence=np.full(len(rows), number),
                position=tokens, phase=tokens >= prompt, chosen=np.full(len(rows), -1),
                scores=scores_TLE.astype(np.float16), predicted=predicted.astype(np.float16),
            )  # fmt: skip
