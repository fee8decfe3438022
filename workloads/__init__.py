"""Questions, prompts, scoring, and generated exercises."""
