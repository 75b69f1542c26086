"""The user's side of a cluster: a folder on the login node, a job file in it, and the real program."""

import json
import sys
from pathlib import Path

import yaml

from support.commands import Done, ran

# Where the login node has neither torch nor ray: importing them fails, and they are not found.
_LIGHT = (
    "import sys; sys.modules.update(torch=None, ray=None)\nfrom clustertrain.cli.main import main; main()"
)

# Stands in for the Python on the nodes: what is tested here is what reaches it.
AGENT = """\
#!/bin/sh
printf '%s\\n' "$@" > "$SLURM_SUBMIT_DIR/arguments-$SLURM_NODEID"
env > "$SLURM_SUBMIT_DIR/environment-$SLURM_NODEID"
[ "$SLURM_NODEID" -ne 0 ] || : > "$CLUSTERTRAIN_MAIL/agent"
exit ${AGENT_CODE:-0}
"""


class Login:
    """`folder` is where the user is. Job files there run a stub on the nodes unless they say otherwise."""

    def __init__(self, cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        (folder / "code").mkdir()
        (folder / "code" / "train.py").write_text("def train(config): pass\n")
        self.write_agent(AGENT)

    def write_agent(self, text: str) -> None:
        (self.folder / "agent").write_text(text)
        (self.folder / "agent").chmod(0o755)

    def job(self, **sections) -> None:
        """Write job.yaml; `slurm` is added to what makes it runnable."""
        slurm = {"time_limit": "5m", "python": "./agent", **sections.pop("slurm", {})}
        job = {"name": "digits", "function": "train:train", "code": "code", "storage": "runs", **sections}
        job["slurm"] = {key: value for key, value in slurm.items() if value is not None}
        (self.folder / "job.yaml").write_text(yaml.safe_dump(job))

    def __call__(
        self,
        *arguments: str,
        code: int | None = None,
        light: bool = True,
        umask: int = -1,
        **environment: str,
    ) -> Done:
        """Run `clustertrain …` to its end, with this exit code."""
        start = ["-c", _LIGHT] if light else ["-m", "clustertrain.cli"]
        state = str(self.folder.parent / f"{self.folder.name}-state")  # of this user alone
        own = {"CLUSTERTRAIN_SITE": "", "XDG_STATE_HOME": state, **environment}
        variables = {**self.cluster.environment, **own}
        argv = [sys.executable, *start, *arguments]
        return ran(argv, code=code, cwd=self.folder, env=variables, umask=umask, timeout=150)

    def submit(self, *arguments: str, code: int = 0, **options) -> str:
        """`clustertrain submit`, which must end with this code; returns what it printed to stdout, or the
        error's lines where there is one."""
        done = self("submit", "--to", "slurm", *arguments, code=code, **options)
        assert "Traceback" not in done.stderr
        if code == 0:
            return done.stdout
        error = done.stderr[done.stderr.index("error: ") :]
        assert 2 <= len(error.splitlines()) <= 4, error
        return error

    def records(self, generation: int = 1) -> list[dict]:
        folder = self.folder / "runs" / "digits" / f"g{generation}" / "submissions"
        paths = [path for path in folder.glob("slurm-*.json") if "." not in path.stem]  # no end of a job
        found = [json.loads(path.read_bytes()) for path in paths]
        return sorted(found, key=lambda record: record["time"])

    def jobs(self) -> set[str]:
        """The ids of all jobs that the queue knows. It forgets each when it has been over for a while."""
        return set(self.cluster.command("squeue", "--noheader", "--states=all", "--format=%A").stdout.split())
