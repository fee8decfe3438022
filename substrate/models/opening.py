"""Opens a folder of weights, whichever kind it is."""

from pathlib import Path

from moebench.substrate.models.checkpoint import JOURNAL, MANIFEST, Checkpoint


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a folder of weights: an import or a Hugging Face checkpoint.

    Raises CheckpointError: the folder is neither of them, or is broken.
    """
    if (path / MANIFEST).exists() or (path / JOURNAL).exists():
        # Only an import's hashes and records need torch, which takes a second to import.
        from moebench.substrate.models.imported import open_import

        return open_import(path)
    return Checkpoint(path)
