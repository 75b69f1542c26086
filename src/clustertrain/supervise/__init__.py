"""Processes of a run that leave nothing behind, whichever of them is killed.

guardian.py        the parent of a driver or of Ray: ends every process below it
process.py         starts a command under a guardian
private_folder.py  the folder of one start on one node
orphans.py         ends the processes that a killed start left on this machine
driver_process.py  the driver under a guardian, and its next start or its result if it wrote none
check_process.py   the check of a job's code below a guardian, with a deadline
supervisor.py      the loop beside a driver: shows events, and ends the run if its policy decides so
stop_on_signal.py  the first signal requests a save and a stop, the second ends the run

Reasons:

`clustertrain run` owns the terminal and the signals and starts the guardian. The guardian is a child
subreaper and starts the driver in its own session. The driver starts Ray or, without Ray, the ranks. At
the end the guardian kills and reaps until it has no children; one that hangs in the kernel is left after
half a minute. This is necessary: after `kill -9` of a driver with a local Ray, 16 processes in 9 process
groups remained, some for over a minute; the subreaper ended them in 0.43 s (measured with Ray 2.60).

The driver writes only to files, and the display is made from these files. The guardian detects the end of
`clustertrain run`, whatever killed it, because the pipe from it closes.

Whatever is killed, nothing stays. The guardian is two processes, the second a fork of the first, and each
does the same when the processes above it end: so `clustertrain run` and a guardian may be killed
together. If all three are killed together, the kernel ends the driver, Ray's GCS and the raylet
(PR_SET_PDEATHSIG), each rank ends with its raylet (`worker/machine/raylet_watch.py`) or, without Ray,
with its driver, and the next start on the machine ends the rest (`supervise/orphans.py`).

A killed driver is started again by its supervisor (`supervise/driver_process.py`), with a new Ray on one
machine, in the same attempt. It counts as a failed start of the worker group; one that was not claimed
yet is claimed for that, so that the count follows from the files (`run_files/retry_budget.py`). On one
machine the driver also ends as soon as one of Ray's processes ends or does not answer
(`driver/ray_watch.py`): Ray itself notices this after 30 to 60 s, or not at all. A GCS that gets SIGTERM
stays without its port, and the workers would train to an end that nobody hears of; therefore it is asked
every second, from the moment in which it has started. A driver that ends by an error of its own is not
started again, nor one that the kernel killed for memory: as for a worker, the counters of its cgroups
before and after show it (`node/memory_kill.py`).

One loop supervises the driver (`supervise/supervisor.py`): in `clustertrain run`, in the agent of a SLURM
job's head node, and in the entrypoint of a RayJob. It shows the run's events and, for a function or a
script, what rank 0 prints: from the log of the rank as it grows, each line in its last state
(`observe/terminal_text.py`), so that no output can change the user's terminal. In each round it calls an
`EndPolicy`, which may end the run. On one machine and in a pod the policy checks for signals: the first
requests a save and a stop, the second ends the run. On SLURM it checks for SLURM's signals, for lost
nodes, and for a newer attempt (`launchers/agent/node_end.py`, `launchers/slurm/agent/end_policy.py`).
"""
