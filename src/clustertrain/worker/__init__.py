"""What runs in the worker processes of Ray Train: one process per rank.

train.py          the function of TorchTrainer, for the three entry points
setup.py          the steps before the process group exists: output, signals, data, checkpoint
process_group.py  makes the process group within a deadline, and names the ranks that are missing
nccl_transport.py  which network NCCL chose, from the lines that it writes
plan.py           the plan of one start of the group, sent by the controller to every worker
rank.py           training.loop.Run on one rank: requests, checkpoints, logs, phases
requests.py       `stop` and `save`: files in the attempt's folder
script.py         an unchanged torchrun script as a child process
group_watch.py    names a rank of a script that makes no process group while others wait
lost_peer.py      whether an exception only shows that another rank is gone
script_command.py  the command and the variables of that process
user_code.py      imports and checks the user's task or function; errors name the line
arguments.py      `args` against the parameters of a task: names, and values of simple types
making.py         creates the task of a job: its args, its loss and metrics by name
user_error.py     an exception of the user's code, as it is sent to the driver
error_report.py   class, text, causes and user's frames of an exception, and the message made of them
printed_traceback.py  reads a report from a printed traceback: of a script, or of a loader process
check.py          checks a job's code before a start: import, args, a rehearsal of a task
debug.py          `run --debug`: rank 0 in this process, without Ray
one_rank.py       one rank outside Ray: its environment, device and process group
shard_source.py   how a worker opens the shards of Shards: local files, S3, the web
shard_index.py    a command that counts the samples of shards and prints their index
local_data.py     the data sets on this machine, outside a run
host_memory.py    whether a node has memory for the copies that saves make
placement.py      a worker on the CPUs next to its GPUs; expandable segments of GPU memory
garbage.py        no search for unreachable objects while a process starts
gpus.py           the GPUs of a rank, and whether torch can use them
storage_probe.py  tests that every node can write the storage and read the files of the others
parent_watch.py   ends a rank with the raylet that started it
watchdog.py       ends a rank that makes no progress, so that Ray restarts the group
stacks.py         writes the stacks of every rank, and NCCL's flight record, if one hangs
loggers/          the curve for TensorBoard, MLflow and Weights & Biases
"""
