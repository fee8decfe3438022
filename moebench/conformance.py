"""Check a system of your own, in your own tests: see docs/adding-a-system.md."""

from moebench.harness.conformance.cases import CASES, Case, cases
from moebench.harness.conformance.suite import CHECKS, Finding, Report, check_system

__all__ = ["CASES", "CHECKS", "Case", "Finding", "Report", "cases", "check_system"]
