"""Selects hypothesis's examples: the same ones in every run, or new ones (`make fuzz`)."""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("MOEBENCH_EXAMPLES", "repeatable"))
