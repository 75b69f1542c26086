"""What schedulers implement, and what the launcher does with it.

interface.py  what a scheduler implements: script, submit, query, cancel
needs.py      what a job needs, and the last lines of its script
needs_of_job.py  computes that from the job file
submit.py     checks a job, takes a snapshot of the code, submits, records the submission
status.py     the status of runs, from their files and the states of their jobs
run_state.py  the state of a run, derived from its files and its job
stop.py       stops a run, and keeps the scheduler from starting it again
on_rank.py    `exec`: a command on the node of a rank
in_job.py     what the programs of all jobs do
start.py      the program of a job, on its first host
several_hosts.py  the head of a job of several hosts
agent.py      the program of each other host
"""
