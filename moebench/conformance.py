"""Public names of the conformance suite, for tests of your own systems: docs/adding-a-system.md."""

from moebench.harness.conformance.cases import CASES, Case, cases
from moebench.harness.conformance.suite import CHECKS, Finding, Report, check_system

__all__ = ["CASES", "CHECKS", "Case", "Finding", "Report", "cases", "check_system"]
