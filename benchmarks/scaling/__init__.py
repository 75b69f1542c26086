"""How the control path of a run grows with the number of ranks: counted with real code, and simulated.

counting_store.py  counts what the actors of a run do on the storage
control_path.py    the phases of a run, by the functions of clustertrain, for any number of simulated ranks
growth.py          what grows how: constant, with log N, or with N
simulation.py      a start of up to 100,000 ranks on a storage with a queue
report.py          what was counted and simulated
tables.py          the same as tables in Markdown
"""
