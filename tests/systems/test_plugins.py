"""Systems of other packages: those offered by metadata, and refused ones with a line."""

import sys
from pathlib import Path

import pytest

from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.systems.options import build
from moebench.systems.plugins import Plugin, plugins
from moebench.systems.registry import SYSTEMS, installed, system_class

OWN = ("smoe", "daop")

SOURCE = """
from moebench.systems.baselines import MoEOnDemand as Theirs

NotASystem = 3
"""


def offer(site: Path, package: str, *lines: str, group: str = "moebench.systems") -> None:
    """Write the metadata of a package that offers systems, as an installer does."""
    info = site / f"{package.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\nSummary: About {package}\n"
    )
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]) + "\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of installed packages at the end of the import path."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "theirs_of_a_test.py").write_text(SOURCE)
    return tmp_path


def test_names_come_from_metadata_and_nothing_is_imported(site: Path):
    offer(site, "Their-Package", "theirs = theirs_of_a_test:Theirs", "broken = nosuch.module:X")
    found = plugins(OWN)
    about = ("their-package 1.2", "About Their-Package")
    assert found.usable == {
        "theirs": Plugin("theirs_of_a_test:Theirs", *about),
        "broken": Plugin("nosuch.module:X", *about),
    }
    assert found.refused == {}
    assert "theirs_of_a_test" not in sys.modules


def test_an_offered_system_is_built_by_name(site: Path):
    offer(site, "theirs", "theirs = theirs_of_a_test:Theirs")
    assert installed().usable.keys() == {"theirs"}
    assert type(build("theirs", {"evict": "lfu"})) is system_class("theirs")
    sys.modules.pop("theirs_of_a_test")
    with pytest.raises(UsageError, match="--variant shipped: theirs has none"):
        system_class("theirs", "shipped")
    with pytest.raises(UnknownNameError, match="nearest: theirs"):
        system_class("thiers")


@pytest.mark.parametrize(
    ("lines", "name", "reason"),
    [
        (["smoe = theirs:X"], "smoe", "one 1.2 offers a system 'smoe', but moebench has one"),
        (["all = theirs:X"], "all", "one 1.2 offers a system 'all'; allowed: a-z, 0-9"),
        (["My:System = theirs:X"], "My:System", "allowed: a-z, 0-9 and . _ -"),
    ],
)
def test_names_that_no_package_may_take(site: Path, lines: list[str], name: str, reason: str):
    offer(site, "one", *lines, "good = theirs:X")
    found = plugins(OWN)
    assert found.usable.keys() == {"good"}
    assert reason in found.refused[name]


def test_two_packages_with_one_name(site: Path):
    offer(site, "one", "theirs = theirs_of_a_test:Theirs")
    offer(site, "two", "theirs = theirs_of_a_test:Theirs", "other = theirs_of_a_test:Theirs")
    found = plugins(OWN)
    assert found.usable.keys() == {"other"}
    assert found.refused == {
        "theirs": "one 1.2 and two 1.2 both offer a system 'theirs'; uninstall one of them"
    }
    with pytest.raises(UsageError, match=r"--system theirs: one 1\.2 and two 1\.2 both offer"):
        system_class("theirs")


def test_a_package_that_is_found_twice_counts_once(site: Path, tmp_path_factory):
    other = tmp_path_factory.mktemp("later")
    offer(site, "one", "theirs = theirs_of_a_test:Theirs")
    offer(other, "One", "theirs = somewhere.old:Theirs")
    sys.path.append(str(other))
    assert plugins(OWN).usable["theirs"].value == "theirs_of_a_test:Theirs"


def test_a_shadowed_name_is_still_ours(site: Path):
    before = system_class("smoe")
    offer(site, "one", "smoe = theirs_of_a_test:Theirs")
    assert system_class("smoe") is before
    assert "rename the entry point in the group moebench.systems" in installed().refused["smoe"]
    with pytest.raises(UsageError, match="flashmoe has none"):
        system_class("flashmoe", "shipped")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("nosuch.module:X", "(of one 1.2): cannot import nosuch.module (ModuleNotFoundError"),
        ("theirs_of_a_test:NotASystem", "theirs_of_a_test:NotASystem is not a System"),
        ("theirs_of_a_test", "theirs_of_a_test is not a System; write module:Class"),
    ],
)
def test_a_broken_one_is_one_line_and_the_others_run(site: Path, value: str, said: str):
    offer(site, "one", f"broken = {value}", "theirs = theirs_of_a_test:Theirs")
    with pytest.raises(UsageError) as raised:
        build("broken")
    sys.modules.pop("theirs_of_a_test", None)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert build("theirs").lossless
    sys.modules.pop("theirs_of_a_test", None)
    assert all(build(name) for name in SYSTEMS)


@pytest.mark.parametrize("line", [b"no equals sign", b"= theirs:X", b"x\xff = theirs:X"])
def test_broken_metadata_break_no_other_package(site: Path, line: bytes):
    offer(site, "good", "theirs = theirs_of_a_test:Theirs")
    offer(site, "bad", "fine = theirs:X")
    (site / "bad-1.2.dist-info" / "entry_points.txt").write_bytes(b"[moebench.systems]\n" + line)
    assert "theirs" in plugins(OWN).usable
    assert "fine" not in plugins(OWN).usable


def test_broken_metadata_that_name_our_group_are_said(site: Path):
    offer(site, "bad", "no equals sign")
    (reason,) = plugins(OWN).refused.values()
    assert reason.startswith(f"{site}: a package's systems cannot be read")


def test_a_package_without_a_summary(site: Path):
    offer(site, "one", "theirs = theirs_of_a_test:Theirs")
    (site / "one-1.2.dist-info" / "METADATA").write_text("Name: one\nVersion: 1.2\n")
    assert plugins(OWN).usable["theirs"].summary == ""


def test_other_groups_offer_nothing(site: Path):
    offer(site, "one", "theirs = theirs:X", group="moebench.systems.experimental")
    assert plugins(OWN) == ({}, {})
