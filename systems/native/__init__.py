"""Third-party packages that run the same checkpoint beside our systems, each in its own process."""
