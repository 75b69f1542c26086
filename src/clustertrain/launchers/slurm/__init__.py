"""SLURM: renders a job as a script for sbatch, submits it, and asks for its state in the queue.

plugin.py      registers the launcher
section.py     the section `slurm` of a job file
scheduler.py   the scheduler: calls sbatch
preflight.py   the checks before a job is submitted
script.py      the sbatch script of a job, with the files of templates/
queue.py       the states of jobs in squeue and sacct
ray.py         the driver's connection to the Ray of its job
agent/         the program that runs on every node of a job

Reasons:

  submit ─▶ snapshot in the storage ─▶ sbatch ─▶ batch shell ─▶ srun ─▶ agent on each node ─▶ Ray
                                                      ▲                    │ on the head       │
                                                      └── mailbox ─────────┴─▶ driver ─────────┴─▶ workers

- On each node the agent does what the guardian does on one machine. Ray and the driver each have their
  own guardian, so that no process remains after a killed agent or a killed guardian. TERM is blocked in
  all of them: SLURM with proctrack/linuxproc sends TERM to every process of a step, and a raylet that
  receives it ends before the last save.
- `slurm.setup` runs in a login shell of its own, which then replaces itself by srun. Its options, traps
  and functions cannot reach the batch shell, where `set -e` would end the job at the first `read` that
  times out.
- Only the batch shell communicates with SLURM, because the agent may run in a container without scontrol.
  Shell and agent exchange messages as files in a folder of their node: a signal was received; a query of
  the job's state; a request to start it again.
- SLURM's job record, not the signal number, determines why a job has to end: PreemptTime is set, Restarts
  has increased, the run time has reached the limit, or, if it is COMPLETING for no other reason, a
  scancel (measured with 22.05). The deadline is the job's EndTime + KillWait; three seconds before it the
  agent itself writes the result.
- `launchers/agent/ray_process.py` starts Ray, not `ray start`: the latter also starts Ray Client's server,
  a port that runs code for its clients, and has no option to turn it off.
- A job of one node uses the loopback address, as a run on one machine does, so that none of its ports can
  be reached from outside. `ray.init` replaces a loopback address by the node's external one, unless Ray's
  switch for clusters is off (`launchers/agent/ray.py`), and torch's store would listen on all addresses
  (`worker/process_group.py`).
- The token is created by the batch shell and passed in the environment of the step, which only its owner
  can read. It is in no argument, and on each node in one file of mode 0600.
- The driver starts in parallel with Ray: its imports take as long as the start of Ray on all nodes.
- `submit` uses `--export=ALL` from a cleaned environment. With a list of variables, SLURM first runs the
  user's login shell on the node, and if that is slow, it requeues the job repeatedly ("not found
  BatchStartTime after startup", observed with 22.05).
- A node on which Ray does not start is treated as lost if the job has several
  (`launchers/agent/node.py`): the job is requeued, because SLURM may allocate other nodes. The
  error may also be the job's or the site's: as every start without a new checkpoint it counts for
  `failures.attempts`. A node that refuses the job by an exit code of its own (another version, too few
  CPUs) ends it at once.
- What SLURM refuses is said by SLURM: `sbatch --test-only` and then `sbatch` check the job, and what they
  print is shown whole. Only the texts of jobs that sbatch queues although it plans no start yet are known
  here (`preflight.py`).
- A new start of the same SLURM job takes over at once, because the earlier start is known to be over.
  Every other start checks the heartbeat.
- The texts of `scontrol -o`, `squeue` and `sinfo` are parsed, because the JSON plugins are missing or
  differ between versions. The site's options (gres or gpus-per-node, mem or mem-per-cpu) are inputs of
  the pure rendering. Nodes are exclusive only if the job requests it.
"""
