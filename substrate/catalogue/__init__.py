"""Full-size models, their scale models, and hardware profiles: data, found by name."""

from pathlib import Path

from substrate.arch import ModelShape
from substrate.errors import UnknownNameError

_HERE = Path(__file__).parent
MODELS = _HERE / "models"
SCALE = _HERE / "scale"


def model_names() -> list[str]:
    """Every full-size model whose shape is known."""
    return sorted(path.stem for path in MODELS.glob("*.json"))


def model_shape(name: str) -> ModelShape:
    """The shape of a full-size model.

    Raises:
        UnknownNameError: no such model.
    """
    if name not in model_names():
        raise UnknownNameError("model", name, model_names(), "see: moebench list models")
    return ModelShape.from_file(MODELS / f"{name}.json")


def scale_names() -> list[str]:
    """Models whose scale model ships with moebench."""
    return sorted(path.parent.name for path in SCALE.glob("*/config.json"))


def scale_path(name: str) -> Path:
    """Where a scale model's checkpoint lies (it may not exist)."""
    return SCALE / name
