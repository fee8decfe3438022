"""Workloads: data sets, prompts, scoring of generated answers, and generated exercises."""
