"""The contents of the small files of a run, a frozen class for each; run_files/folder/ names the files.

claim.py       who runs an attempt or a start of its workers, and from where it continues
provenance.py  from what an attempt was started: code, packages, machine; what changed in the job and its code
requests.py    what a running attempt is asked to do: stop, save, change the number of workers, show stacks
result.py      how an attempt, a start of its workers, or one rank ended: its result or its failure
scheduler.py   the jobs of a scheduler, and the nodes of one

A later version may add a field: a reader ignores fields that it does not know. A change of meaning takes a
new record_file.FORMAT_VERSION, which an older reader refuses.
"""
