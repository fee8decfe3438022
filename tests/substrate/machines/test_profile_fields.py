"""Every field of a hardware profile is explained, in the code and in docs/machines.md."""

from pathlib import Path

from moebench.substrate.machines.profile_fields import FIELDS, schema, table

DOCUMENT = Path(__file__).parents[3] / "docs" / "machines.md"

#: Texts, and what `moebench calibrate` alone writes: the document names them in a sentence.
NOT_IN_THE_TABLE = ("name", "description")


def explained() -> set[str]:
    return {
        name
        for name, _ in schema()
        if name.rpartition(".")[2] not in NOT_IN_THE_TABLE
        and name.partition(".")[0] not in ("calibration", "measured")
    }


def test_every_field_of_the_schema_is_explained_and_no_other() -> None:
    assert len(explained()) > 35
    assert explained() == set(FIELDS)


def test_the_document_has_every_field_with_unit_effect_and_source() -> None:
    text = DOCUMENT.read_text()
    for name, *rest in table():
        assert f"| `{name}` | {' | '.join(rest)} |\n" in text


def test_the_document_names_what_is_not_in_its_table() -> None:
    text = DOCUMENT.read_text()
    calibration = {name.rpartition(".")[2] for name, _ in schema() if "calibration." in name}
    for name in (*NOT_IN_THE_TABLE, "calibration", "measured", *calibration):
        assert f"`{name}`" in text
