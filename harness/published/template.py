"""New rows of published measurements: a template to fill in, and what a filled one lacks."""

from pathlib import Path

from moebench.harness.published.rows import COLUMNS, Row, files_of, parsed
from moebench.results.csvfile import csv_text
from moebench.substrate.errors import InputError
from moebench.substrate.files import write_text

#: Columns that each row must fill in.
NEEDED = ("id", "source", "where", "model", "quant", "system")


def write_template(file: Path) -> None:
    """Write a CSV file with the header and one row of empty cells.

    Raises InputError: it cannot be written.
    """
    write_text(file, csv_text(COLUMNS, [[""] * len(COLUMNS)]))


def lacking(file: Path) -> list[tuple[str, list[str], list[str]]]:
    """Return each row's name and what it lacks: to be a row, and to be an absolute one.

    Raises InputError: the file cannot be read, has no rows, or holds an impossible number.
    """
    found, seen = [], set[str]()
    for one in files_of(file):
        for line, row in parsed(one):
            name = f"line {line}" + (f" ({row.id})" if row.id.strip() else "")
            needed = _needed(row) + ["another id: this one occurs twice"] * (row.id in seen)
            seen |= {row.id} - {""}
            found.append((name, needed, _absolute(row)))
    if not found:
        raise InputError(f"{file}: has no rows; fill in one line below the header")
    return found


def _needed(row: Row) -> list[str]:
    lacks = [name for name in NEEDED if not getattr(row, name).strip()]
    if not (row.gpu.strip() or row.cpu.strip()):
        lacks.append("gpu or cpu")
    if not (row.phases or row.decode_lo or row.decode_hi):
        lacks.append("decode_tok_s or prefill_tok_s")
    if row.decode_lo and row.decode_hi and row.decode_lo > row.decode_hi:
        lacks.append("decode_lo that is not above decode_hi")
    return lacks


def _absolute(row: Row) -> list[str]:
    """Return what an absolute prediction would need (grade strict)."""
    lacks = [] if row.gpu.strip() or row.n_gpu == 0 else ["gpu (or n_gpu 0)"]
    if not row.cpu.strip():
        lacks.append("cpu")
    if row.ram_gb_s is None and not (row.ram_type.strip() and row.ram_channels.strip()):
        lacks.append("ram_gb_s, or ram_type with its rate and ram_channels")
    if row.n_cpu_moe is None and not row.cached_experts_or_slots.strip():
        lacks.append("n_cpu_moe or cached_experts_or_slots")
    if row.prompt_tokens is None:
        lacks.append("prompt_tokens")
    if not row.phases:
        lacks.append("a central value (decode_tok_s or prefill_tok_s)")
    return lacks
