"""A SLURM cluster with accounting: slurmdbd and a MariaDB of its own, in the room of the controller.

    with AccountingCluster([tmp_path]) as cluster:
        cluster.accounts("add", "qos", "night")            # sacctmgr
        cluster.command("sacct", "--jobs=1")

Whoever submits needs an account: root has the account `physics`, everybody else has none.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from clusters.machine import missing, search_path
from clusters.slurm import SlurmCluster
from clusters.slurm import why_not as why_no_cluster
from support.commands import Done, ran

ACCOUNT = "physics"
_DATABASE_PORT = 3306  # on the loopback of a network of its own
_PACKAGES = {"slurmdbd": ("slurmdbd", "sacct"), "mariadb-server": ("mariadbd", "mariadb-install-db")}


def why_not() -> str | None:
    """What this machine lacks for it."""
    return missing(_PACKAGES) or why_no_cluster()


class AccountingCluster(SlurmCluster):
    def __init__(self, shared: Sequence[Path]) -> None:
        accounting = {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageEnforce": "associations,limits,qos",
        }
        super().__init__(1, shared, **accounting, MinJobAge=2)

    def _write_files(self) -> None:
        self._settings["AccountingStorageHost"] = self._address(2)
        self._settings["AccountingStoragePass"] = f"{self.folder}/munge/socket"  # so the manual
        super()._write_files()
        conf = self.folder / "etc" / "slurmdbd.conf"  # slurmdbd looks for it beside slurm.conf
        conf.touch(0o600)
        settings = {
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.folder}/munge/socket",
            "DbdHost": "controller",
            "SlurmUser": "root",
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "127.0.0.1",
            "StoragePort": _DATABASE_PORT,
            "StorageUser": "root",
            "LogFile": f"{self.folder}/log/slurmdbd",
            "PidFile": f"{self.folder}/slurmdbd.pid",
        }
        conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def start_controller(self) -> None:
        """Until it answers; the database and slurmdbd before it."""
        self._start_database()
        self._start("slurmdbd", [*self._inside("site"), "env", *self._variables(), "slurmdbd", "-D"], 1)
        self._wait_until(lambda: self.accounts("show", "cluster").returncode == 0, "slurmdbd is silent")
        for words in (("cluster", "test"), ("account", ACCOUNT), ("user", "root", f"account={ACCOUNT}")):
            self.accounts("add", *words)
        super().start_controller()

    def accounts(self, *words: str) -> Done:
        """What sacctmgr does when it is not asked back."""
        return self.command("sacctmgr", "--immediate", *words, check=False)

    def _start_database(self) -> None:
        folder = self.folder / "database"
        folder.mkdir(0o700)
        install = ["mariadb-install-db", "--no-defaults", "--user=root", "--skip-test-db"]
        ran([*install, f"--datadir={folder}"], code=0, env={**os.environ, "PATH": search_path()})
        server = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={folder}", "--skip-grant-tables"]
        server += [f"--socket={folder}/socket", "--bind-address=127.0.0.1", f"--port={_DATABASE_PORT}"]
        server += [f"--pid-file={folder}/pid", f"--log-error={self.folder}/log/database"]
        self._start("database", [*self._inside("site"), *server], 1)
        self._wait_until((folder / "socket").exists, "the database is silent")
