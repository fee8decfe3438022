"""What every system runs on: models, machines, memory, the engine, routing traces, analysis.

Imports point down this list: errors and terms, models, machines, memory, engine, analysis, traces.
"""
