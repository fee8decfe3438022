"""Regression checks of accuracy and latency: moebench check and moebench accuracy."""
