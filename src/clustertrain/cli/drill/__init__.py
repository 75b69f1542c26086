"""`clustertrain drill`: the proof that a training resumes.

plan.py      the runs of a drill, and the moments of their faults
trial.py     one run to its end, on any launcher
left.py      what a run left, as text that can be compared: its curve, samples, and checkpoints
compare.py   where two runs differ first
report.py    the drill from beginning to end, and its report
"""
