"""The files of a run: every path, and the processes that write and read each.

folder/          every path of a run, in one object; the spool of a node
records/         the contents of its small files, a frozen class for each
recorded_job.py  the job files of a run and of its attempts
attempt_ref.py   a reference to an attempt, as text that one process passes to another
states.py        the states of a run, their causes and exit codes
command_line.py  the command that started a run, for messages that advise the next command
run_address.py   the run that a folder belongs to
admission.py     whether a job may start, and as which attempt
job_diff.py      the changes in a job since the last attempt, and whether its run continues with them
claims.py        which process runs an attempt, and whether it is alive
provenance.py    from what an attempt was started: code, packages, machine
result.py        the result of an attempt
retry_budget.py  the failures in a row after which a run ends
best.py          the best checkpoint of a run
save_interval.py  how often to save
submission.py    a job that is submitted to a scheduler, and how a node finds its snapshot
snapshot.py      the code of a job at its submission
working_folder.py  where the code of a submitted run works, and the files that code leaves beside itself
rendezvous.py    the files by which the nodes of one start find each other
streams/         files that grow while a run trains: events, metrics, logs

Reasons:

Records. Each small file contains one record, a frozen class in run_files/records/. The object that names the
file also reads and writes it, and nothing else does: `attempt.claim.read()`,
`attempt.stop.write(StopRequest("user"))` (record_file.py). A reader checks every type. It ignores keys
that it does not know, because a later version may add some; a change in the meaning of a file raises its
`format_version`, and a version of clustertrain that does not know that number refuses the file. Files
without the key have format 1. The refusal is a StorageError (exit code 4) with the path of the file, the
reason and the remedy. Events and metrics are lines with free fields; docs/reference/json.md lists the
kinds of events.

`result.json` of the newest attempt determines the state of a run. The streams (events, metrics, logs,
TensorBoard) belong to one attempt and restart; a reader drops the steps that a later restart repeated.
TensorBoard shows each folder as a separate curve, so its files have one folder for all attempts, also on
S3; each file names the step from which it replaces earlier ones. Each logger (`worker/loggers/`) has a
thread with a bounded queue, so that neither its server nor its disk delays or ends a training.
Generations are a level of the path from the beginning, because an object store cannot rename.

On S3 the same keys contain the same bytes, with three differences. A tree (a checkpoint) is its files,
then its marker, put last with `If-None-Match: *`; after a 412 the writer reads the marker back and
accepts it if the bytes are its own. A stream is written to the node's spool and uploaded in numbered
pieces, because an object cannot be appended to; a reader uses the local file if there is one, and
otherwise joins the pieces. Nodes share no folder: the data and the checkpoint to resume from are stored
once per node. Polling (`stop`, `save`, heartbeat) runs outside the training loop and gives up after one
try, so that an unreachable server delays only saves.
"""
