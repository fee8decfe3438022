"""Newer fields are written where they are set, so that older content keeps its hash."""

from typing import ClassVar

from moebench.substrate.extensible import Extensible


class Grown(Extensible):
    """A model with two newer fields, one of which has another model."""

    NEWER: ClassVar[frozenset[str]] = frozenset({"more", "inner"})

    size: int = 1
    more: int | None = None
    inner: "Grown | None" = None


def test_newer_fields_are_left_out_at_their_defaults_alone() -> None:
    assert Grown().model_dump() == {"size": 1}
    assert Grown().model_dump_json() == '{"size":1}'
    assert Grown(more=0).model_dump() == {"size": 1, "more": 0}
    whole = Grown(size=2, more=3, inner=Grown(inner=Grown(more=4)))
    assert whole.model_dump() == {
        "size": 2, "more": 3, "inner": {"size": 1, "inner": {"size": 1, "more": 4}},
    }  # fmt: skip
    assert Grown.model_validate_json(whole.model_dump_json()) == whole
    assert Grown.model_validate(Grown().model_dump()) == Grown()
