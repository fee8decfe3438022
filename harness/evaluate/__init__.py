"""Other people's evaluators ask our systems: lm-evaluation-harness and OpenCompass."""
