"""An unchanged torchrun script as a process of its own.

script.py             starts the script, follows it, and reports its end
script_command.py     the command and the variables of that process
request_page.py       how the script knows of a request to stop without a signal

Reasons:

A script runs in a process of its own, not in the worker: Ray's train function runs in a thread, where
`signal.signal` fails, and Ray patches `print`. The process has its own session, so it would survive a
killed worker; therefore the kernel sends it SIGKILL at the death of its parent (PR_SET_PDEATHSIG). For
the kernel the parent is a *thread*, so the thread that started a child also waits for it.

The process is a plain child of its worker, so each start costs its own imports, as under torchrun: from
the SIGKILL of a rank to the next new step 9.4 s without Ray and 10.2 s with it (`clustertrain run
--no-ray job.yaml` with two ranks of `tests/whole/jobs/resuming_script.py`, medians of three runs on two
cores with a load of 9).

The rank ends when its script has ended and nothing holds the script's output any more. What the script
leaves running (a rank of mp.spawn that waits in NCCL, a monitor) is killed ten seconds after its end: it
may hold a GPU, and the rank would wait for it for ever.

What a script logs with `clustertrain.session`, its process appends to the run's metrics itself, so that
no line is lost with it or with its rank, which follows the file for TensorBoard. A request to stop
reaches it through a memfd of its rank (`worker/scripts/request_page.py`), also if the storage is S3, and
its ranks agree in the script's own process group.

`worker/scripts/script_command.py` decides what the script is started with. The paths of data and
checkpoints are known only in the worker, so `${CLUSTERTRAIN_…}` in `args` and `env` stays text until
then, and the identity of a run contains the text. `${NAME}` in `env` stays text in every record, because
its value may be a secret: the supervisor replaces it (`job/references.py`) and hands the values to the
driver in its environment, and the driver to the workers in their plan. The script may have a Python of
its own (`interpreter`); it then gets the import path of the code and nothing of the worker's. Several
folders of `code` are sent as one archive, each in a folder named by its position (`job/code_folders.py`).
"""
