"""A checkout is known by its root, an installed package is none; a required test may not skip."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moebench.harness import checkout as module
from moebench.harness.checkout import checkout
from moebench.harness.evaluate import packages
from moebench.harness.evaluate.packages import find_opencompass

ROOT = Path(__file__).parents[2].resolve()


def test_the_root_holds_the_packages_whose_links_are_below_moebench() -> None:
    assert checkout() == ROOT


def test_an_installed_package_is_no_checkout(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages" / "moebench" / "harness"
    installed.mkdir(parents=True)
    shutil.copy(str(module.__file__), installed / "checkout.py")
    code = "from checkout import checkout; print(checkout())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=installed, capture_output=True, text=True
    )
    assert done.stdout == "None\n"


def test_opencompass_is_found_beside_the_checkout_s_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOEBENCH_OPENCOMPASS", raising=False)
    monkeypatch.setattr(packages, "checkout", lambda: tmp_path)
    assert find_opencompass() is None
    python = tmp_path / ".venv-opencompass" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert find_opencompass() == python
    monkeypatch.setenv("MOEBENCH_OPENCOMPASS", str(tmp_path / "elsewhere"))
    assert find_opencompass() is None
    monkeypatch.setattr(packages, "checkout", lambda: None)
    monkeypatch.delenv("MOEBENCH_OPENCOMPASS")
    assert find_opencompass() is None


@pytest.mark.parametrize(("required", "outcome"), [("", "1 skipped"), ("1", "1 failed")])
def test_a_required_test_may_not_be_skipped(required: str, outcome: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n\ndef test_it():\n    pytest.skip('nothing here')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."], cwd=tmp_path,
        env=os.environ | {"MOEBENCH_REQUIRE": required, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert outcome in done.stdout
