"""The worker processes, one per rank, with Ray Train and without Ray.

train.py              the function that each rank calls, for the three entry points
forked_rank.py        a rank without Ray: it calls what the driver sends
place.py              the numbers, the address and the devices of a rank
setup.py              the steps before the process group exists: output, signals, data, checkpoint
process_group.py      makes the process group within a deadline, and names the ranks that are missing
nccl_transport.py     which network NCCL chose, from the lines that it writes
restart_plan.py       the plan of one start of the group, sent by the driver to every worker
rank.py               training's Host on one rank: requests, checkpoints, logs, phases
memory_shelf.py       the checkpoints in the memory of a node
auto_save.py          the clock of `checkpoint.every: auto`
stop_requests.py      `stop` and `save`: files in the attempt's folder
watchdog.py           ends a rank that makes no progress, so that the driver starts the group again
step_limit.py         the limit of a step, learnt from the steps before it
early_return.py       names a rank that left the user's function while others wait for it
stacks.py             the stacks of every rank, if one hangs or `clustertrain stacks` requests them
strike.py             the fault that a run of a drill causes itself
check.py              checks a job's code before a start: import, args, a rehearsal of a task
debug.py              `run --debug`: rank 0 in this process, without Ray
single_rank_group.py  one rank outside Ray: its environment, device and process group
fork/                 the processes of ranks are forks of one that has imported torch and Ray Train
code/                 the user's code: imported, created, its errors reported
scripts/              an unchanged torchrun script as a child process
machine/              the rank's process and its node: GPUs, CPUs, memory, data
loggers/              the curve for TensorBoard, MLflow and Weights & Biases

Reasons:

A stop is a file in the attempt's folder. Rank 0 checks for it at most every 0.2 s. All ranks agree on the
step by an asynchronous all_reduce whose result is read one step later. At steps of 12 ms this has no
measurable cost; a blocking all_reduce costs 1.5 ms. Stop and save are two requests: `save` commits a
checkpoint and continues, `stop` has a cause and ends the run.

Order in a worker: `driver/group/start.py` makes the same calls for all three entry points. Data is staged
before the process group is created, so that no rank waits in a collective for a download. clustertrain
makes the process group itself (`worker/process_group.py`), because Ray Train has neither a deadline for
it nor the names of the ranks that are missing. The watchdog has a limit for each phase. That of a step is
learnt where the loop is clustertrain's own (`worker/step_limit.py`): only there a beat is one step, and
the loop knows which steps may be longer (phase "step" instead of "usual_step"). torch's collective
timeout is a minute longer than the longest limit, in case the watchdog itself cannot run. A rank that a
signal has stopped cannot run it, and before there is a process group nobody waits for it: until then each
call has a limit in the driver (`driver/group/start.py`), and so have Ray's start of the processes and the
call that begins the training (`driver/trainer.py`): a call of Ray that waits in C++ ends only with the
process for which it waits, so the process is ended.
"""
