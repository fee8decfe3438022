"""The parts that all systems share: models, machines, memory, engine, routing traces, analysis.

A package imports only earlier ones of: errors and terms, models, machines, memory, engine,
analysis, traces.
"""
