"""Files of a store that a run reads: noted only while somebody collects, each once."""

from pathlib import Path

import pytest

from moebench.substrate.files_read import below, collect_reads, record_read


def test_reads_are_collected_inside_the_context_alone() -> None:
    first, second, third = Path("a"), Path("b"), Path("c")
    assert record_read(first) is first
    with collect_reads() as found:
        assert record_read(second) is second
        with collect_reads() as inner:
            record_read(third)
        record_read(second)
    record_read(first)
    assert (found, inner) == ({second}, {third})


def test_an_error_ends_the_collection() -> None:
    with pytest.raises(ZeroDivisionError), collect_reads() as found:
        record_read(Path("a") / str(1 // 0))
    record_read(Path("b"))
    assert found == set()


def test_only_paths_inside_a_folder_are_listed_in_order() -> None:
    folder = Path("store")
    found = {folder / "b" / "c.bin", folder / "a", Path("store2/a"), Path("elsewhere"), folder}
    assert below(folder, found) == [".", "a", "b/c.bin"]
    assert below(folder, set()) == []
