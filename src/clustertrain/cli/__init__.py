"""The command line.

__main__.py     `python -m clustertrain.cli`
main.py         every command, a few lines each
options.py      the arguments and options that several commands have
where.py        where a command reads a storage: here, or in the cluster
init.py         `clustertrain init`: a job file and a Task to start from
import_job.py   `clustertrain import`: a job file from the file or command of another launcher
grid.py         `--grid`: the points of a sweep
explain.py      `clustertrain explain` and `clustertrain stacks`
checkpoints.py  `clustertrain ckpt`: list, verify, export and request checkpoints
report.py       `clustertrain report`
data.py         `clustertrain data`: list, fetch and remove data sets
"""
