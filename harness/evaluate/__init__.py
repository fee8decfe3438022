"""Evaluation of moebench systems with lm-evaluation-harness and OpenCompass."""
