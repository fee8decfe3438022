"""Hand-written runs for every test of the reports."""

import importlib.util
import sys
from pathlib import Path

# The test folders are no packages: make `samples` importable from beside this file.
_spec = importlib.util.spec_from_file_location("samples", Path(__file__).with_name("samples.py"))
assert _spec is not None
assert _spec.loader is not None
samples = importlib.util.module_from_spec(_spec)
sys.modules.setdefault("samples", samples)
_spec.loader.exec_module(samples)
