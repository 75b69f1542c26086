"""What bench.py consists of. None of it imports torch.

figures.py    the figures and the goals
results.py    values, rows and reports, and their JSON
quiet.py      measures again while other processes use the machine
processes.py  starts programs, measures their memory, and ends them
trainings.py  the training programs: start, speed, memory, recovery
commands.py   the commands, saves and copies
page.py       the tables, and docs/performance.md
picture.py    the bars, as SVG
"""
