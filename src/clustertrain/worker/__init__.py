"""What runs in the worker processes of Ray Train: one process per rank.

train.py          the function of TorchTrainer, for the three ways in
setup.py          before the process group exists: output, signals, data, checkpoint
plan.py           what the controller sends to every worker of one start of the group
rank.py           training.loop.Run on one rank: requests, checkpoints, logs, phases
requests.py       `stop` and `save`: files in the attempt's folder
script.py         an unchanged torchrun script as a child process
user_code.py      the user's task or function: found, checked, or refused with the wrong line
gpus.py           whether torch can use the GPUs of this node
storage_probe.py  every node can write the storage and sees what the others wrote
watchdog.py       ends a rank that makes no progress, so that Ray restarts the group
stacks.py         the stacks of every rank when one hangs
tensorboard.py    the curve for TensorBoard
"""
