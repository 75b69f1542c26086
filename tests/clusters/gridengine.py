"""A real Grid Engine of one host on this machine, as root, in namespaces of its own.

    with GridEngine(tmp_path) as engine:
        engine.command("qstat", cwd=tmp_path)

All files but the cell and the spool are the machine's. It ends with this object, and with this process,
however that ends (see gridengine_host.sh).
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from clusters.machine import NAMESPACES, inside, missing, no_namespaces
from support.commands import Done, ran

_SCRIPT = Path(__file__).parent / "gridengine_host.sh"
_PACKAGES = {
    "gridengine-master": ("sge_qmaster",),
    "gridengine-exec": ("sge_execd",),
    "gridengine-client": ("qsub", "qconf"),
    "iproute2": ("ip",),
    "util-linux": ("nsenter", "unshare"),
}
_PATIENCE_S = 120.0
CELL = {"SGE_ROOT": "/var/lib/gridengine", "SGE_CELL": "default"}


def why_not() -> str | None:
    """What this machine lacks for it."""
    return missing(_PACKAGES) or no_namespaces()


class GridEngine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> "GridEngine":
        self.folder.mkdir()
        self._process = subprocess.Popen(
            [*NAMESPACES, "--mount-proc", str(_SCRIPT), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        printed = []
        for line in self._process.stdout:
            printed.append(line)
            if line == "up\n":
                break
        else:
            raise AssertionError("Grid Engine does not come up:\n" + "".join(printed))
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        self._pid = int(children.read_text())
        return self

    def __exit__(self, *error: object) -> None:
        self._process.stdin.close()  # the host's process 1 takes all others with it
        self._process.wait(_PATIENCE_S)
        self._process.stdout.close()

    def processes(self) -> list[str]:
        """What runs on the host beside process 1 and the daemons."""
        listed = self.command("ps", "-eo", "pid=,args=").stdout.splitlines()
        lines = [line.split(maxsplit=1) for line in listed]
        return [
            args
            for pid, args in lines
            if pid != "1" and not args.startswith(("/usr/lib/gridengine/", "ps -eo"))
        ]

    def command(
        self,
        *argv: str,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Done:
        """Run a command on the host, which is also the one that submits."""
        argv = (*inside(self._pid), f"--wd={cwd or self.folder}", "env", *argv)
        variables = {**os.environ, **CELL, **(environment or {})}
        return ran(argv, code=0 if check else None, env=variables, timeout=_PATIENCE_S)
