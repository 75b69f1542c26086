"""What bench.py consists of. None of it imports torch.

figures.py    the figures and the goals
results.py    values, rows and reports, and their JSON
quiet.py      the machine; measures again while other processes use it
processes.py  starts programs, measures their memory, and ends them
trainings.py  the training programs: start, speed, memory, recovery
commands.py   the commands, saves and copies
turns.py      what the programs share that measure sides by turns: starts, saves, copies
page.py       the tables, and docs/performance.md
picture.py    the bars, as SVG
"""
