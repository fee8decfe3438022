"""Makes data frames of rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moebench.harness.extras import require

if TYPE_CHECKING:
    import pandas


def frame_of(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> "pandas.DataFrame":
    """Return rows as a data frame.

    Raises UsageError: pandas is not installed.
    """
    require("pandas", "frame()")
    import pandas

    return pandas.DataFrame(list(rows), columns=None if columns is None else list(columns))
