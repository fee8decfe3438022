"""Answers of `moebench advise`: what to run on a machine, and what meets a budget."""
