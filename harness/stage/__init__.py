"""Stages of runs: machine, memory and engine, with one module for each kind of machine."""
