"""Search for the fastest composition of decisions on a machine (`moebench search`).

question      what is run: the options of a run but its system
composition   the space of compositions, and how Optuna's trials choose in it
evaluation    compositions as stored runs, with the time of every token
study         trials in an SQLite file, which a killed search goes on with
rounds        published systems, then trials; slower ones are stopped early
held_out      other prompts, workloads, routing and machines
outcome       what was found, against the best published system
source        the composition found, as a file of one class
"""
