"""The command line: main.py says which file has which command.

__main__.py     `python -m clustertrain.cli`
main.py         the command `clustertrain`: its help, its errors, and which file has which command
start.py        the commands init, import, check, render, run, submit and schema
watch.py        the commands status, logs, ls, report and stop
debug.py        the commands explain, stacks, exec, drill and drilled
data_and_checkpoints.py  the commands `data` and `ckpt`, with those below them
options.py      the arguments and options that several commands have
where.py        where a command reads a storage: here, or in the cluster
init.py         what `init` writes: a job file and a Task to start from
import_job.py   what `import` writes: a job file from the file or command of another launcher
grid.py         `--grid`: the points of a sweep
checkpoints.py  what the commands `ckpt` do: list, verify, export and request checkpoints
report.py       what `report` writes: the facts of runs, on a page
drill/          proves that a training resumes: runs with faults, compared with one without
migrate/        reads a script for sbatch, or the command of another launcher, for `import`
data.py         what the commands `data` do: list, fetch and remove data sets
"""
