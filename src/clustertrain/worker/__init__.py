"""The worker processes of Ray Train: one process per rank.

train.py              the function of TorchTrainer, for the three entry points
forked_rank.py        a rank without Ray: it calls what the driver sends
place.py              the numbers, the address and the devices of a rank
setup.py              the steps before the process group exists: output, signals, data, checkpoint
process_group.py      makes the process group within a deadline, and names the ranks that are missing
nccl_transport.py     which network NCCL chose, from the lines that it writes
restart_plan.py       the plan of one start of the group, sent by the controller to every worker
rank.py               training's Host on one rank: requests, checkpoints, logs, phases
memory_shelf.py       the checkpoints in the memory of a node
auto_save.py          the clock of `checkpoint.every: auto`
stop_requests.py      `stop` and `save`: files in the attempt's folder
watchdog.py           ends a rank that makes no progress, so that Ray restarts the group
step_limit.py         the limit of a step, learnt from the steps before it
early_return.py       names a rank that left the user's function while others wait for it
stacks.py             writes the stacks of every rank, and NCCL's flight record, if one hangs
stacks_on_demand.py   answers a request for the stacks of all ranks: `clustertrain stacks`
strike.py             the fault that a run of a drill causes itself
check.py              checks a job's code before a start: import, args, a rehearsal of a task
debug.py              `run --debug`: rank 0 in this process, without Ray
single_rank_group.py  one rank outside Ray: its environment, device and process group
fork/                 the processes of ranks are forks of one that has imported torch and Ray Train
code/                 the user's code: imported, created, its errors reported
scripts/              an unchanged torchrun script as a child process
machine/              the rank's process and its node: GPUs, CPUs, memory, data
loggers/              the curve for TensorBoard, MLflow and Weights & Biases
"""
