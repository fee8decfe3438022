"""Pydantic models whose newer fields are written only where they are set."""

from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import BaseModel, model_serializer


class Extensible(BaseModel):
    """Base of models whose newer fields are written only where they are set.

    A model that leaves them at their defaults has the same JSON, and so the same hash, as before
    these fields existed.

    Attributes:
        NEWER: the fields that are left out at their default.
    """

    NEWER: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _omit_unset(self, write: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        fields, written = type(self).model_fields, write(self)
        unset = {key for key in self.NEWER if getattr(self, key) == fields[key].default}
        return {key: value for key, value in written.items() if key not in unset}
