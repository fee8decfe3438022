"""Packages that the core of moebench works without: which extra installs each, and the errors.

Files that are in the wheel of the scale models' weights are treated in the same way.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NamedTuple

from moebench.substrate.errors import CheckpointError, UsageError

#: Distribution with the weights of the scale models, on which the wheel of moebench depends.
WEIGHTS = "moebench-weights"


class Package(NamedTuple):
    """Name of an optional package on the package index, and the extra that installs it."""

    name: str
    extra: str


#: Optional packages by import name.
EXTRAS = {
    "accelerate": Package("accelerate", "native"),
    "alembic": Package("alembic", "mlflow"),
    "datasets": Package("datasets", "hub"),
    "deepspeed": Package("deepspeed", "native"),
    "gguf": Package("gguf", "native"),
    "huggingface_hub": Package("huggingface-hub", "hub"),
    "llama_cpp": Package("llama-cpp-python", "native"),
    "lm_eval": Package("lm-eval", "eval"),
    "mlflow": Package("mlflow-skinny", "mlflow"),
    "numba": Package("numba", "fast"),
    "optuna": Package("optuna", "search"),
    "pandas": Package("pandas", "pandas"),
    "pynvml": Package("nvidia-ml-py", "energy"),
    "ray": Package("ray", "ray"),
    "rouge_score": Package("rouge-score", "eval"),
    "sqlalchemy": Package("sqlalchemy", "mlflow"),
    "transformers": Package("transformers", "hf"),
    "vl_convert": Package("vl-convert-python", "figures"),
    "wandb": Package("wandb", "wandb"),
}


def require(module: str, needed_by: str = "") -> None:
    """Refuse to go on without an optional package, which is given by its import name.

    Args:
        needed_by: the option or input that needs the package, for the error.

    Raises UsageError: the package is not installed; names the command that installs it.
    """
    if find_spec(module) is None:
        found = EXTRAS[module]
        subject = f"{needed_by}: " if needed_by else ""
        raise UsageError(
            f"{subject}{found.name} is not installed; type: pip install 'moebench[{found.extra}]'"
        )


@contextmanager
def install_errors() -> Iterator[None]:
    """Replace errors of missing packages and missing weights by one with the install command.

    Raises UsageError: an optional package, or the weights of the scale models, are not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in EXTRAS:
            require(module)
        raise
    except CheckpointError as error:
        from moebench.substrate.models.catalogue import SCALE

        if str(SCALE) in str(error):
            require_weights()
        raise


def require_weights() -> None:
    """Refuse to go on without the weights of the scale models that ship.

    Raises UsageError: they are not installed; names the command that installs them.
    """
    from moebench.substrate.models.catalogue import SCALE, ships

    if ships() and not any(SCALE.glob("*/model.safetensors")):
        raise UsageError(
            f"the weights of the scale models are not installed; type: pip install {WEIGHTS}"
        )
