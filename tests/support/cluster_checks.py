"""What a test asks of a run alike on SLURM and on Kubernetes. `run` is that cluster's own kind of Run."""

import json
import re
from pathlib import Path

from clustertrain.checkpoints.manifest import names

_DIGITS = Path(__file__).parents[2] / "examples" / "digits"
DIGITS = {
    "code": str(_DIGITS),
    "task": "digits:Digits",
    "args": {"lr": 0.002},
    "data": {"digits": {"uri": str(_DIGITS / "digits.tar.gz"), "extract": True}},
    "train": {"epochs": 15, "batch_size": 32, "seed": 0},
}
LONG = {"train": {"epochs": 400, "batch_size": 4, "log_every": 1}, "failures": {"retries": 0}}


def drilled(run, to: str, faults: str) -> dict:
    """The report of a drill, after which the training is exact."""
    done = run.command("drill", str(run.job_file), "--to", to, "--faults", faults, "--json", code=0)
    report = json.loads(done.stdout)
    assert report["exact"], report
    return report


def ask_all_and_why_it_failed(run, node: str, name_of_process: str, failed: str) -> None:
    """Each command as a user gives it. `exec` kills rank 1 on its node.

    Args:
        node: a pattern of the host names.
        name_of_process: the command that prints it there.
        failed: the cluster's word for the state.
    """

    def asked(command: str, *arguments: str, code: int = 0) -> str:
        return run.command(*command.split(), str(run.job_file), *arguments, code=code).stdout

    run.wait_for_step(2)
    saved = asked("ckpt save").strip()
    assert saved in map(str, names(run.run_dir.checkpoints))
    assert "faulty.py:" in asked("stacks")
    assert asked("explain").startswith("cause:  the run is running; ")
    status = json.loads(asked("status", "--json"))
    assert 0 < status["ettr"] < 1 and status["device_hours"] > 0

    say = f"echo $RANK on $(hostname); {name_of_process}; kill -KILL $CLUSTERTRAIN_PID; exit 7"
    said = asked("exec", "--rank", "1", "--", "sh", "-c", say, code=7)
    assert re.fullmatch(rf"1 on {node}\nray::\S+\n", said)
    run.wait(failed)
    explained = asked("explain")
    assert re.search(rf"^proof: .* rank 1 \(pid \d+ on {node}\) died of signal 9", explained, re.M), explained
    asked("report", "-o", "asked.html")
    assert "died of signal 9" in (run.folder / "asked.html").read_text()
