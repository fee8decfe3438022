"""The Python interface (`moebench.run`, `sweep`, `compare`, `trace`), which the commands call."""
