"""Which examples hypothesis tries: the same ones in every run, or new ones (`make fuzz`)."""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("random", print_blob=True)
settings.load_profile(os.environ.get("MOEBENCH_EXAMPLES", "repeatable"))
