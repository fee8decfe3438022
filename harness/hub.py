"""Downloads checkpoints from the Hugging Face hub; failures become one-line errors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moebench.substrate.errors import CheckpointError, InputError, UsageError

#: Files of a repository that runs read; files in original formats or for other frameworks are not
#: downloaded.
WANTED = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
UNWANTED = ("original/*", "metal/*", "onnx/*")


def fetch(repo: str, out: Path, revision: str | None = None) -> None:
    """Download a repository's weights, configuration and tokenizer, keeping existing files.

    The configuration is downloaded first, so that an unsupported family is reported before the
    weights are downloaded.  `huggingface_hub` resumes an interrupted download, and reads its token
    from ``HF_TOKEN`` or from the file that ``hf auth login`` wrote.

    Raises:
        UsageError: no such repository or revision, or its licence was not accepted.
        InputError: the hub cannot be reached, or ``out`` cannot be written.
        CheckpointError: the model's family is not supported, or the repository has no safetensors.
    """
    from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download

    from moebench.substrate.models.checkpoint import Checkpoint
    from moebench.substrate.models.config import read_shape

    hub = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    with _said(repo, revision, out, hub):
        # Request the revision once here, since each download would request it again.
        info = HfApi(endpoint=hub).model_info(repo, revision=revision)
        names = {file.rfilename for file in info.siblings or ()}
        if "config.json" not in names or not any(n.endswith(".safetensors") for n in names):
            raise CheckpointError(f"{repo}: holds no config.json with .safetensors files")
        config = hf_hub_download(
            repo, "config.json", revision=info.sha, local_dir=out, endpoint=hub
        )
        read_shape(Path(config))
        snapshot_download(
            repo, revision=info.sha, local_dir=out, allow_patterns=list(WANTED),
            ignore_patterns=list(UNWANTED), endpoint=hub,
        )  # fmt: skip
    Checkpoint(out).close()


@contextmanager
def _said(repo: str, revision: str | None, out: Path, hub: str) -> Iterator[None]:
    from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is there
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        HTTPError,  # of whichever library the hub's own are based on
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    log_in = "log in with: hf auth login (or set HF_TOKEN)"
    try:
        yield
    except HFValidationError as error:
        raise UsageError(f"{repo}: not a repository's name; allowed: OWNER/NAME") from error
    except GatedRepoError as error:
        raise UsageError(
            f"{repo}: its licence must be accepted first, at {hub}/{repo}; then {log_in}"
        ) from error
    except RepositoryNotFoundError as error:
        raise UsageError(
            f"{repo}: no such repository at {hub}, or a private one; for that {log_in}"
        ) from error
    except RevisionNotFoundError as error:
        raise UsageError(f"{repo}: has no revision {revision}; see {hub}/{repo}") from error
    except HfHubHTTPError as error:
        first = str(error).splitlines()[0]
        raise InputError(
            f"{repo}: the hub refuses ({first}); give the same command again later"
        ) from error
    except (HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise InputError(
            f"{hub} cannot be reached; check the network, HF_ENDPOINT and HF_HUB_OFFLINE.  Weights "
            "that are on the disk need no download: give their folder as --weights"
        ) from error
    except OSError as error:
        raise InputError(
            f"{out}: cannot be written ({error}); free some space or give another --out; what was "
            "downloaded stays"
        ) from error
