"""Recipes for synthesized routing: one for each model family whose routing was measured.

``catalogue/recipes.yaml`` holds the recipes by model.  Recipes of shipped models were found by
`substrate.traces.fit`: the statistics of their synthesized routing are in the model's targets.
"""

from dataclasses import asdict
from functools import cache
from pathlib import Path

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from moebench.substrate.errors import InputError, UnknownNameError, UsageError

RECIPES = Path(__file__).parents[1] / "catalogue" / "recipes.yaml"

#: Recall of predictions for models without a published one: Mixtral's (DAOP, Fig. 5).
RECALL = 0.84


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class SynthesisRecipe:
    """Parameters of the random process that synthesizes a trace (`substrate.traces.synthesis`).

    Attributes:
        static, ar1: variances of the logits' parts, as means over layers; noise has the rest of 1.
        rho: AR(1) coefficient from token to token.
        common: share of the static variance that all sequences have in common.
        depth: static and AR(1) variance of the first, middle and last layer, relative to the mean.
        prefill: correlation of a sequence's static part in prefill with that in decode.
        recall: share of a layer's top-k that the layer before predicts; None: no predictions.
        spread: standard deviation of the logits that the gate's softmax reads.
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
    """Return all recipes in a file by model.

    Raises InputError: the file cannot be read, or holds no recipes.
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
    """Return the recipe of a model whose routing was measured.

    Raises UnknownNameError: there is no recipe of that name.
    """
    if name not in recipes():
        raise UnknownNameError("family", name, recipes(), "or give --static and the others")
    return recipes()[name]


def recall_of(model: str) -> float:
    """Return the recall of a model's next-layer predictions, or the default recall."""
    recipe = recipes().get(model)
    return RECALL if recipe is None or recipe.recall is None else recipe.recall


def as_yaml(model: str, recipe: SynthesisRecipe) -> str:
    """Return a recipe as a line of the recipe file."""
    numbers = asdict(recipe) | {"depth": list(recipe.depth)}
    text = yaml.safe_dump(numbers, sort_keys=False, default_flow_style=True, width=1000)
    return f"{model}: {text.strip()}"


def write_recipe(model: str, recipe: SynthesisRecipe) -> None:
    """Write a recipe to the recipe file, replacing the model's present one."""
    lines = RECIPES.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.partition(":")[0] != model]
    place = next((i for i, line in enumerate(lines) if line.startswith(f"{model}:")), len(lines))
    kept.insert(place, as_yaml(model, recipe))
    RECIPES.write_text("\n".join(kept) + "\n", encoding="utf-8")
    recipes.cache_clear()
