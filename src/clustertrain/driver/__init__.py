"""The driver: one process per attempt, which runs the job and writes the result.

It runs the job with Ray Train or without Ray.

__main__.py      the program: job -> the starts of the worker group -> result.json
ray_cluster.py   the driver's interface to a Ray cluster; launchers/*/ray.py have the classes
elastic_cluster.py  a Ray cluster whose nodes come and go
world_size.py    how many workers have room; why there are fewer or more
ray_internals.py  Ray's private API: the one file that names it
ray_node.py      starts Ray on this machine, within a deadline of the site
fork/            the fork server of a node, which makes the processes of ranks, with Ray and without
connection.py    connects to a Ray that runs
deadline.py      ends the driver if a call to Ray does not return
ray_watch.py     notices that Ray has ended or does not answer, and ends the driver
starts.py        the loop over the starts of the worker group
trainer.py       one start with Ray Train: TorchTrainer with its controller in the driver
calls.py         the answers of the ranks to calls, with Ray and without
group/           one start of the worker group: its steps; a group without Ray
backend.py       Ray Train's hooks for the steps of a start
cause/           the cause of a failed start of the worker group
retry_policy.py  whether another start of the worker group can help
growth.py        a group that is smaller than the job allows returns when there is room for more
result_of_fit.py  the result of the attempt, from what rank 0 reported, a failure, or an error

Reasons:

The driver reaches Ray through one class (`launchers/NAME/ray.py`), chosen once by the launcher that the
claim names.

One loop starts the worker group (`driver/starts.py`). A start is one call: it claims the restart, chooses
the checkpoint, sets the ranks up, stages the data, makes the process group, and trains. After a failure
`driver/retry_policy.py` gives the workers of the next start, or the result if no start would help.

Without Ray the steps of a start, the causes of failures and the rules for another start are the same
(`driver/group/start.py`, `driver/cause/`, `driver/retry_policy.py`), because `driver/group/forked.py`
offers what Ray Train's worker group offers. The driver imports torch once and forks itself while it has
one thread; the fork is the node's fork server, and the ranks are forks of that. If it was killed, the
next start of the ranks starts another. A rank is called through two sockets (`worker/forked_rank.py`),
and its pidfd shows its end. Ray Train's own local mode has neither restarts nor a deadline, and its
processes would each import torch and Ray Train. Whatever differs between the two is in `driver/calls.py`;
the code of a rank (`worker/`) needs no Ray, because its place in the group is a value that it is given
(`worker/place.py`); only its gauges import Ray (`worker/loggers/ray_gauges.py`).

The number of workers is chosen at each start of the worker group, from the nodes that are there
(`driver/elastic_cluster.py`), and given to Ray Train as `ScalingConfig`, with a label selector that
leaves out the nodes with a broken GPU. For more workers a request in the folder of the restart has the
ranks save and return as for a stop (`driver/growth.py`), so no step is repeated. The free resources that
Ray reports are a second old, and a lost node counts as alive for up to 30 s: therefore the room on a node
is never more than its whole resources, and a raylet that does not accept connections delays the choice.
The records of the failures name the nodes that are left out, so a driver that was started again leaves
them out, too.

Every call that reaches Ray has a deadline. Ray has settings for its wait for the GCS and the dashboard.
That it gives a node 30 s to register, and that its raylet waits 15 s for the ports of its agents, is
fixed in its code, and a busy machine exceeds both. `driver/ray_node.py` starts Ray's processes here and
on SLURM's nodes, with the agents' ports given, so that the raylet waits for none, and waits for the node
until `failures.ray_start` or `slurm.nodes_wait`. In a pod the operator writes the command; `ray start`
calls our hook (RAY_START_HOOK, `launchers/kubernetes/in_pod/ray_start.py`), so that it waits until
`kubernetes.start_deadline`. It repeats a failed start, and puts the last words of Ray's logs into the
message, since Ray's folder is removed. Calls that connect, or start the workers' processes, may wait
inside Ray's C++ code, where no exception reaches them: a thread then writes the result and ends the
process (`driver/deadline.py`).

Forks serve ranks, and only ranks (`driver/fork/server.py`). A new process of a rank imports Ray twice,
torch and Ray Train: about 3 of the 5.7 s that were between the SIGKILL of a rank and the next new step.
Where clustertrain starts Ray (this machine, SLURM, pods), a fork server starts with it, and Ray gets a
program in place of its setup_worker.py that asks the server for a process. There is one server per node:
it has imported torch, and imports Ray Train at the first request, with the variables of that request,
which Ray reads once. On one machine it is a fork of the driver, which imports torch before it imports Ray
and has threads: on two cores a second import at the same time takes longer than this wait. Pages that
nobody writes exist once per node, however many ranks it has. A rank that needs other variables of Ray, of
the dynamic loader, of OpenMP or of MKL than the server is a new process. The user's code is imported by
each rank, because it may start a thread, ask CUDA for its devices or draw an id of Ray's, and such a
process cannot be forked: CUDA refuses the forks, and Ray's C++ has a generator whose forks draw the same.
If the server is killed, workers start as Ray starts them. Its socket is in the private folder of the
node. The rest of a restart is Ray's: a placement group, which the GCS makes as soon as it knows that the
CPUs are free (`FAST_RESTART` in `node/ray_settings.py`), and actors.

Ray Train's limits are all set explicitly, because several defaults are infinite. A call of `fit` is one
start of the group: Ray Train repeats nothing (max_failures=0). The health check runs every 0.2 s instead
of 2 s, and the preemption watcher and the metrics actor are off.

Ray Train's controller runs in the driver (`trainer.py`), on every cluster. As an actor it would import
torch and Ray Train again before it starts the first worker, which took about 5.5 s of a start on two
cores. What it calls of clustertrain raises nothing: the error is kept, and the workers are ended, so that
`fit` ends by itself. The change overrides private methods of Ray, so Ray's version has an upper bound. On
a Ray that outlives the run, Ray itself removes the placement group of a driver that has ended.

Ray's private API is in one file (`driver/ray_internals.py`), in two lists: names without which a run
would not be safe, correct or within its limits, each with what it prevents, and names that save seconds,
which `benchmarks/ray_names.py` measures. The error in a run names what a new Ray lacks, and the versions
that were tested; `tests/driver/test_ray_internals.py` has what would change without an error. The file is
in `driver/`, because only the driver and the launchers' parts inside the job use it; a worker gets the one
name it needs as an argument.
"""
