"""Third-party packages that run the same checkpoint as our systems, each in its own process."""
