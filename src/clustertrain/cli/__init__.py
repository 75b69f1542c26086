"""The command line.

__main__.py     `python -m clustertrain.cli`
main.py         every command, a few lines each
options.py      the arguments and options that several commands have
init.py         `clustertrain init`: a job file and a Task to start from
checkpoints.py  `clustertrain ckpt`: list and verify checkpoints, select the one to export
data.py         `clustertrain data`: list, fetch, verify and remove data sets
"""
