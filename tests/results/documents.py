"""A run document as small as the store accepts."""

from typing import Any

SPAN = {"lane": "h2d", "kind": "load", "layer": 1, "experts": [3], "start_us": 0.5, "end_us": 9.0}


def document(
    run_id: str, created: str = "2026-01-01T00:00:00+00:00", **extra: Any
) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "spec": {"system": "smoe", "setting": "S3", "workload": "gsm8k"},
        "badge": "datasheet",
        "provenance": {"created": created},
    } | extra
