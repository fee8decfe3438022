"""Missing optional packages and missing weights: one line with the command that installs them."""

import re
import tomllib
from pathlib import Path

import pytest

from moebench.harness import extras
from moebench.harness.extras import EXTRAS, Package, install_errors, require
from moebench.substrate.errors import CheckpointError, UsageError
from moebench.substrate.models import catalogue
from tests.harness.commands import refused

ROOT = Path(__file__).parents[2]

#: Extras that no command of the product needs by itself.
TOOLS = {"all", "dev", "docs"}


def declared() -> set[tuple[str, str]]:
    """Each package of each extra of pyproject.toml, as (package, extra)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        (re.split(r"[^\w.-]", line)[0], extra)
        for extra, lines in project["optional-dependencies"].items()
        if extra not in TOOLS
        for line in lines
    }


def test_table_and_pyproject_list_the_same_packages() -> None:
    table = {(package.name, package.extra) for package in EXTRAS.values()}
    assert table <= declared()
    assert {package for package, _ in declared()} == {package for package, _ in table}


def test_all_lists_every_extra_but_the_one_that_compiles() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (line,) = project["optional-dependencies"]["all"]
    named = set(re.fullmatch(r"moebench\[(.+)\]", line)[1].split(","))  # type: ignore[index]
    assert named == {extra for _, extra in declared()} - {"native"}


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "no_such_module", Package("no-such-package", "some"))


COMMAND = "no-such-package is not installed; type: pip install 'moebench[some]'"


@pytest.mark.usefixtures("absent")
def test_require_refuses_a_missing_package_and_accepts_an_installed_one() -> None:
    with pytest.raises(UsageError) as caught:
        require("no_such_module", "--option")
    assert str(caught.value) == f"--option: {COMMAND}"
    require("pytest")


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize("module", ["no_such_module", "no_such_module.part"])
def test_import_error_of_an_optional_package_names_its_extra(module: str) -> None:
    with pytest.raises(UsageError) as caught, install_errors():
        __import__(module)
    assert str(caught.value) == COMMAND


def test_other_import_errors_stay_as_they_are() -> None:
    with pytest.raises(ModuleNotFoundError, match="not_ours"), install_errors():
        __import__("not_ours")
    with pytest.raises(ModuleNotFoundError, match="pytest"), install_errors():
        raise ModuleNotFoundError("no part of pytest", name="pytest.part")


@pytest.fixture
def without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scale models as the wheel of moebench alone installs them."""
    monkeypatch.delenv(catalogue.FOLDER_VARIABLE, raising=False)
    scale = tmp_path / "scale"
    for file in catalogue.SCALE.glob("*/*.json"):
        (scale / file.parent.name).mkdir(parents=True, exist_ok=True)
        (scale / file.parent.name / file.name).symlink_to(file)
    monkeypatch.setattr(catalogue, "SCALE", scale)
    return scale


WEIGHTS = (
    "moebench: the weights of the scale models are not installed; type: "
    f"pip install {extras.WEIGHTS}"
)


@pytest.mark.parametrize(
    "command",
    [
        "run --system smoe --setting S3 --prompts 1 --new-tokens 2",
        "machines sensitivity --system smoe --setting S3 --prompts 1 --new-tokens 2",
        "models verify mixtral-8x7b --quick",
    ],
)
@pytest.mark.usefixtures("without_weights")
def test_missing_weights_are_one_line(command: str) -> None:
    assert refused(*command.split()) == WEIGHTS


def test_errors_of_other_checkpoints_stay_as_they_are(
    without_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match="own"), install_errors():
        raise CheckpointError("own/weights: holds no .safetensors file")
    (without_weights / "mixtral-8x7b" / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="qwen2"), install_errors():
        raise CheckpointError(f"{without_weights}/qwen2-57b-a14b: holds no .safetensors file")
