"""Option values and places on the command line, and one line for what is none."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.arguments import (
    find_data_dir,
    given_of,
    listed,
    parse_gib,
    parse_overrides,
    parse_rate,
    require_file,
    require_folder,
    require_new,
    require_writable,
)
from moebench.substrate.errors import MoeBenchError, UsageError
from moebench.workloads.hub import PREFIX


@pytest.mark.parametrize(
    ("text", "gib"),
    [("8", 8), ("11.5GiB", 11.5), (" 12 GB ", 12e9 / 2**30), ("1e-1GiB", 0.1), (None, None)],
)
def test_sizes(text: str | None, gib: float | None) -> None:
    assert parse_gib("--budget", text) == (gib if gib is None else pytest.approx(gib))


@pytest.mark.parametrize("text", ["", "GB", "0", "-3", "1.2.3GB", "1e999GB", "12TB", "12 G B"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match=r"--budget .*expected a size, for example 12GB"):
        parse_gib("--budget", text)


@pytest.mark.parametrize(("text", "rate"), [("4GB/s", 4), ("800 MB/s", 0.8), (None, None)])
def test_rates(text: str | None, rate: float | None) -> None:
    assert parse_rate("--link", text) == (rate if rate is None else pytest.approx(rate))


@pytest.mark.parametrize("text", ["", "4", "0GB/s", "4GB", "1.2.3GB/s", "1e999GB/s"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(UsageError, match=r"--link .*expected a rate, for example 4GB/s"):
        parse_rate("--link", text)


# --------------------------------------------------------------------------- options


def said(check: Callable[..., object], *given: Any) -> str:
    with pytest.raises(MoeBenchError) as caught:
        check(*given)
    return str(caught.value)


def test_values_are_separated_by_single_commas() -> None:
    assert listed("a") == ["a"]
    assert listed(" a , b,c ") == ["a", "b", "c"]
    for wrong in ("", "a,", ",a", "a,,b", "a, ,b"):
        assert said(listed, wrong) == f"{wrong!r}: allowed: values separated by single commas"
    assert said(listed, "a,", "--batches").startswith("--batches 'a,': allowed")


def test_overrides_are_pairs() -> None:
    assert parse_overrides(["a=b", "c.d=e=f", "a=g"]) == {"a": "g", "c.d": "e=f"}
    assert parse_overrides([]) == {}
    for wrong in ("a", "a=", "=b", ""):
        assert said(parse_overrides, [wrong]) == (
            f"--set {wrong}: expected key=value, for example --set evict=lru"
        )


def test_typed_options_are_parsed_by_their_unit_and_kind() -> None:
    typed = {
        "system": "smoe", "setting": None, "allow_overcommit": False, "clairvoyant": True,
        "overrides": ["evict=lru"], "device_memory_gib": "12GiB", "emulated_link_gb_s": "800MB/s",
        "weights": Path("a/b"), "machine": "m.yaml", "seed": 0, "batch": 3,
    }  # fmt: skip
    assert given_of(typed) == {
        "system": "smoe", "clairvoyant": True, "overrides": {"evict": "lru"},
        "device_memory_gib": 12, "emulated_link_gb_s": 0.8, "weights": "a/b", "machine": "m.yaml",
        "seed": 0, "batch": 3,
    }  # fmt: skip
    assert given_of({"overrides": []}) == {}
    assert said(given_of, {"device_memory_gib": "x"}).startswith("--device-memory x: expected a")


def test_a_data_folder_exists_or_is_on_the_hub(tmp_path: Path) -> None:
    assert find_data_dir(None) is None
    assert find_data_dir(tmp_path) == tmp_path
    assert find_data_dir(Path(f"{PREFIX}x")) == Path(f"{PREFIX}x")
    assert said(find_data_dir, tmp_path / "x") == f"--data-dir {tmp_path / 'x'}: no such folder"


# --------------------------------------------------------------------------- places


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that cannot be written, also for a user who may do anything."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    access = os.access

    def checked(path: Any, mode: int) -> bool:
        return access(path, mode) and not (Path(path) == folder and mode & (os.W_OK | os.X_OK))

    monkeypatch.setattr("os.access", checked)
    return folder


def test_an_output_file_is_a_plain_file_in_a_place_that_can_be_written(
    tmp_path: Path, read_only: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for place in (file, tmp_path / "new", tmp_path / "new" / "deep", Path("here")):
        require_file("--out", place)
    require_file("--out", tmp_path / "new", True)
    new = tmp_path / "no" / "x"
    for place, exists, says in (
        (tmp_path, False, "this is a folder; give a file in it"),
        (Path("/dev/null"), False, "no plain file; give another name"),
        (new, True, f"no such folder {tmp_path / 'no'}"),
        (file / "x", False, f"{file} is not a folder; give another place"),
        (read_only / "x", False, f"{read_only} is not writable; give another place"),
        (read_only / "deep" / "x", False, f"{read_only} is not writable; give another place"),
        (Path("/proc/x"), False, "/proc is not writable; give another place"),
    ):
        assert said(require_file, "--out", place, exists) == f"--out {place}: {says}"


def test_an_output_folder_is_new_or_can_be_made(tmp_path: Path, read_only: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("")
    link.symlink_to("nowhere")
    new = tmp_path / "new" / "deep"
    require_new("--out", new)
    require_folder("--out", new)
    require_folder("--out", tmp_path)
    for place in (tmp_path, file, link):
        assert said(require_new, "--out", place) == (
            f"{place}: exists; give another --out, or remove it first"
        )
    for place, says in (
        (file / "x", f"{file} is not a folder"), (read_only / "x", f"{read_only} is not writable"),
    ):  # fmt: skip
        whole = f"--out {place}: {says}; give another place"
        assert said(require_new, "--out", place) == said(require_folder, "--out", place) == whole
    assert said(require_folder, "--out", file / "x", "typed").startswith("--out typed: ")


def test_a_store_is_in_a_place_that_can_be_written(tmp_path: Path, read_only: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    require_writable(tmp_path)
    require_writable(tmp_path / "new" / "deep")
    for place, says in (
        (file, f"{file} is not a folder"), (file / "x", f"{file} is not a folder"),
        (read_only, f"{read_only} is not writable"),
        (read_only / "x", f"{read_only} is not writable"),
    ):  # fmt: skip
        assert said(require_writable, place) == f"--store {place}: {says}; give another --store"
    assert said(require_writable, file, "--to") == (
        f"--to {file}: {file} is not a folder; give another --to"
    )
