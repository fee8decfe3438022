"""Weights of a live run: checkpoint, tokenizer, and the decoders built from them."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from moebench.harness.run import learn
from moebench.harness.run.identity import bits_hash, profile_hash, system_hash
from moebench.harness.run.learn import Learnable
from moebench.harness.run.questions import Texts, read_texts, weights_path
from moebench.results.spec import RunSpec
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.models.catalogue import check_topology, model_shape
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.opening import open_checkpoint
from moebench.substrate.models.shape import ExpertDtype, ModelShape
from moebench.systems.learn.artefacts import Artefact, kept

if TYPE_CHECKING:  # naming a run needs no torch, which takes a second to import
    from moebench.harness.stage.stage import StageRequest
    from moebench.substrate.models.decoder import Decoder
    from moebench.substrate.models.protocol import Model
    from moebench.substrate.models.shared import SharedWork


@dataclass(slots=True, kw_only=True)
class OpenWeights:
    """Opened and checked weights, with the work that runs of the same weights share.

    Attributes:
        full: the model that is charged.
        hashes: by name, the content of weights, tokenizer, model and profile.
        expert_dtype: what the run quantises experts to.
        remember: whether prefills and reference logits are kept, too: of a full-size model they
            would fill the memory.
        shared: the shared work; a run alone makes its own.
    """

    full: ModelShape
    checkpoint: Checkpoint
    texts: Texts
    hashes: dict[str, str]
    expert_dtype: ExpertDtype | None
    remember: bool
    shared: "SharedWork | None" = None

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the checkpoint."""
        return self.texts.tokenizer

    @property
    def end(self) -> int | None:
        """Token id that ends a text; None if the files name none."""
        return self.texts.end

    def sharing(self) -> "SharedWork":
        """Return the work shared between runs, or new work of this run alone."""
        if self.shared is None:
            from moebench.substrate.models.shared import SharedWork

            self.shared = SharedWork(self.checkpoint, expert_dtype=self.expert_dtype)
        return self.shared

    def share(self, shared: "SharedWork | None") -> "SharedWork":
        """Share experts, prefills and reference logits with earlier runs of the same weights."""
        from moebench.substrate.models.shared import SharedWork

        self.shared = shared or SharedWork(self.checkpoint, self.remember, self.expert_dtype)
        return self.shared

    def learnable(
        self, spec: RunSpec, system: System, data_dir: Path | None, scratch: Path,
        progress: Callable[[int, int], None],
    ) -> Learnable:  # fmt: skip
        """Return the routing of texts that the lossless model generates for training prompts.

        Its experts are quantised if the run's are.  Texts end at end-of-text where the run's
        answers do, else all have the same length.
        """
        return learn.written(
            learn.source(spec),
            learn.texts(spec, system, data_dir),
            learn.LosslessModel(
                self.sharing().decoder, self.sharing().differentiable, self.sharing().rounding,
                self.hashes["weights"] + (self.expert_dtype or ""), self.tokenizer,
                self.end if spec.scoring == "generation" else None,
            ),
            learn.folder(scratch),
            progress,
            learn.learnt_from(system.policies.values()),
            system.lookaheads,
        )  # fmt: skip

    def weight_norms(self, scratch: Path) -> np.ndarray:
        """Return the Frobenius norm of each expert's weights ``[L, E]``, kept below ``scratch``."""
        from moebench.substrate.models.norms import expert_norms

        def measured() -> Artefact:
            return Artefact({"norms": expert_norms(self.checkpoint)})

        file = learn.folder(scratch) / f"weight-norms-{self.hashes['weights']}.safetensors"
        return kept(file, measured).arrays["norms"]

    def resident(self, scoring: str, system: System) -> "tuple[Decoder, Model]":
        """Return a decoder with all experts in memory, and the model that the engine calls.

        The latter remembers prefills.  A remembered prefill has gates and states, but neither
        predictions nor the logits of other tokens than the last one.  With records of several forms
        each system's prefill is its own, as it is where prompts are not routed exactly.
        """
        decoder = self.sharing().decoder(reuse_predictions=True, forms=system.forms)
        anew = scoring == "prefill" or len(system.forms) > 1
        anew = anew or any(predictor.in_prefill for predictor in system.predictors)
        anew = anew or not system.route.exact_prefill
        return decoder, decoder if anew else self.sharing().remembering(decoder)

    def request(
        self, spec: RunSpec, system: System, longest: int,
        model: "Callable[[Decoder | None], Model]", scratch: Path, keep_timeline: bool, note: str,
    ) -> "StageRequest":  # fmt: skip
        """Return the request for a stage that computes with these weights.

        Args:
            longest: tokens of the longest text, new ones included.
            model: returns what the engine calls; `StageRequest.model`.
            note: a sentence on the lengths of texts, for simulated runs.
        """
        from moebench.harness.stage.stage import StageRequest

        notes = [] if spec.machine == "local" else [note]
        if notes and self.expert_dtype is not None:
            notes.append(
                f"experts are quantised to {self.expert_dtype} and computed with as the "
                "numbers that these stand for, in fp32"
            )
        return StageRequest(
            spec=spec, system=system, full=self.full, longest=longest, model=model,
            weights=self.checkpoint, weights_name=self.hashes["weights"],
            ran=named(spec, self.checkpoint), scratch=scratch, keep_timeline=keep_timeline,
            notes=notes,
        )  # fmt: skip


def named(spec: RunSpec, checkpoint: Checkpoint) -> str:
    """Return the name and size of the computing model, which a measured time must state."""
    size = checkpoint.shape.total_params
    text = f"{size / 1e9:.3g} B" if size >= 1e9 else f"{size / 1e6:.3g} M"
    name = f"{spec.model}'s scale model"
    if spec.weights is not None:
        name = Path(spec.weights).resolve().name
    return f"{name}, {text} parameters"


def open_weights(spec: RunSpec) -> OpenWeights:
    """Open a run's weights and tokenizer."""
    full, path = model_shape(spec.model), weights_path(spec)
    files = sorted(path.iterdir()) if path.is_dir() else []
    stamp = [(file.name, *_state(file)) for file in files]
    checkpoint, texts, content = _opened(path, spec.plain_prompts, tuple(stamp))
    check_topology(full, checkpoint.shape, checkpoint.path)
    hashes = {
        "weights": content, "tokenizer": _hash(texts.tokenizer.to_str()),
        "model": _hash(full.model_dump_json()), "profile": profile_hash(spec),
        "torch": version("torch"), "numpy": np.__version__, "numba": _numba(),
    }  # fmt: skip
    if texts.template is not None:
        hashes["chat template"] = _hash(texts.template.source)
    return OpenWeights(
        full=full, checkpoint=checkpoint, texts=texts, hashes=hashes,
        expert_dtype=spec.expert_dtype, remember=spec.weights is None,
    )  # fmt: skip


def _numba() -> str:
    """Return the version of Numba, or "none": the loops that it compiles round differently."""
    try:
        return version("numba")
    except PackageNotFoundError:
        return "none"


def _state(file: Path) -> tuple[int, int]:
    found = file.lstat()
    return found.st_size, found.st_mtime_ns


@lru_cache(maxsize=8)
def _opened(
    path: Path, plain: bool, stamp: tuple[tuple[str, int, int], ...]
) -> tuple[Checkpoint, Texts, str]:
    """Return a folder's checkpoint, its texts and the hash of its weights, read once.

    A plan of many cells asks for each setting and workload; to check and hash a folder takes 50 ms.

    Args:
        stamp: names, sizes and times of the folder's files: others are read again.
    """
    checkpoint = open_checkpoint(path)
    return checkpoint, read_texts(path, plain), checkpoint.content_hash()


def computing_system(spec: RunSpec) -> System:
    """Build the system of a live run.

    Raises UsageError: it decides by what comes next, which nobody knows here.
    """
    system = spec.make_system()
    if system.clairvoyant:
        raise UsageError(
            f"{spec.title} must know which experts come next: replay recorded routing, for example "
            "--trace DIR or --routing drawn"
        )
    return system


def own_hashes(spec: RunSpec, system: System, data_dir: Path | None) -> dict[str, str]:
    """Return the hashes of a run beside its inputs': code, calibration, and bits of weights."""
    own = {"system": system_hash(system), **learn.identity(spec, system, data_dir)}
    return own | bits_hash(spec)


def under(
    spec: RunSpec, hashes: dict[str, str], data_dir: Path | None
) -> tuple[System, dict[str, str]]:
    """Return the system and the hashes of another spec on the same weights and prompts.

    Raises UsageError: the system decides by what comes next.
    """
    system = computing_system(spec)
    shared = {k: v for k, v in hashes.items() if not k.startswith("calibration")}
    own = own_hashes(spec, system, data_dir)
    return system, shared | {"profile": profile_hash(spec)} | own


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
