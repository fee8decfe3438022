"""Recipes of drawn routing: one for each family whose routing was measured.

``catalogue/recipes.yaml`` holds them by model.  Those of shipped models were found by
`substrate.traces.fit`: what is drawn by them lies in the model's targets.
"""

from dataclasses import asdict
from functools import cache
from pathlib import Path

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from moebench.substrate.errors import InputError, UnknownNameError, UsageError

RECIPES = Path(__file__).parents[1] / "catalogue" / "recipes.yaml"

#: Recall of predictions where none is published of a model (Mixtral's; DAOP, Fig. 5).
RECALL = 0.84


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class SynthesisRecipe:
    """What a drawn trace should look like.

    Attributes:
        static, ar1: variances of the logits, as means over layers; noise has the rest.
        rho: AR(1) coefficient from token to token.
        common: share of the static variance that all sequences have in common.
        depth: static and AR(1) variance of the first, middle and last layer, over the mean's.
        prefill: correlation of a sequence's static part in prefill with that in decode.
        recall: share of a layer's top-k that the layer before predicts; None predicts nothing.
        spread: standard deviation of logits as the gate's softmax sees them.
    """

    static: float
    ar1: float = 0.0
    rho: float = 0.0
    common: float = 0.3
    depth: tuple[float, float, float] = (1.0, 1.0, 1.0)
    prefill: float = 1.0
    recall: float | None = None
    spread: float = 1.0

    def __post_init__(self) -> None:
        ranges = {
            "static": 1.0, "ar1": 1.0, "rho": 0.9999, "common": 1.0, "prefill": 1.0, "recall": 1.0,
        }  # fmt: skip
        for name, most in ranges.items():
            value = getattr(self, name)
            if value is not None and not 0 <= value <= most:
                raise UsageError(f"{name} is {value:g}; allowed: 0 to {most:g}")
        if self.static + self.ar1 > 1:
            raise UsageError(
                f"static {self.static:g} and ar1 {self.ar1:g} are shares of one variance; "
                "their sum may be 1 at most"
            )
        if self.spread <= 0 or min(self.depth) < 0 or not sum(self.depth):
            raise UsageError("spread must be positive, depth not negative and not all zero")


@cache
def recipes(file: Path = RECIPES) -> dict[str, SynthesisRecipe]:
    """All recipes, by model.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
        return TypeAdapter(dict[str, SynthesisRecipe]).validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{file}: {where}: {first['msg']}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{file}: cannot be read ({' '.join(str(error).split())})") from error


def family(name: str) -> SynthesisRecipe:
    """The recipe of a model whose routing was measured.

    Raises:
        UnknownNameError: nothing is published of it.
    """
    if name not in recipes():
        raise UnknownNameError("family", name, recipes(), "or give --static and the others")
    return recipes()[name]


def recall_of(model: str) -> float:
    """The share of a layer's top-k that is predicted in a model's family."""
    recipe = recipes().get(model)
    return RECALL if recipe is None or recipe.recall is None else recipe.recall


def as_yaml(model: str, recipe: SynthesisRecipe) -> str:
    """A recipe as a line of the file."""
    numbers = asdict(recipe) | {"depth": list(recipe.depth)}
    text = yaml.safe_dump(numbers, sort_keys=False, default_flow_style=True, width=1000)
    return f"{model}: {text.strip()}"


def write_recipe(model: str, recipe: SynthesisRecipe) -> None:
    """Put a recipe into the file, in place of the model's."""
    lines = RECIPES.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.partition(":")[0] != model]
    place = next((i for i, line in enumerate(lines) if line.startswith(f"{model}:")), len(lines))
    kept.insert(place, as_yaml(model, recipe))
    RECIPES.write_text("\n".join(kept) + "\n", encoding="utf-8")
    recipes.cache_clear()
