"""The files of a run: every path, who writes and who reads each.

folder.py        every path of a run, in one object
records.py       what its small files hold, a frozen class for each
record_file.py   how such a file is read and written, and its version
recorded_job.py  the job as it was when the run was started
attempt_ref.py   where an attempt is, as text that one process passes to another
states.py        the states of a run, their causes and exit codes
begin.py         whether a job may start, and as which attempt
claims.py        who runs an attempt, and whether they live
result.py        how an attempt ended
submission.py    what was submitted to a scheduler, and how a node finds it again
snapshot.py      the code of a job as it was when it was submitted
rendezvous.py    where the nodes of one start meet
events.py        events and metrics, as lines of JSON
streams.py       files that grow: one writer, any reader, on a file system or on S3
shipping.py      sends the streams of a node to S3 while they grow
history.py       the streams of all restarts as one
step_counter.py  the last finished step, kept when its writer is killed
"""
