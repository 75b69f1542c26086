"""The model of a checkpoint, read in the storage or brought from the cluster that has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from clustertrain.checkpoints.manifest import CheckpointFolder
from clustertrain.checkpoints.transfer import receive_model
from clustertrain.launchers.launcher import Launcher
from clustertrain.launchers.target import Target
from clustertrain.observe.checkpoints import choose


@contextmanager
def model_of(
    launcher: Launcher, target: Target, name: str | None, *, best: bool = False
) -> Iterator[tuple[CheckpointFolder, str]]:
    """Yield where the model of a checkpoint can be read within the block: a shelf, and the name on it.

    Raises: as `choose`.
    """
    if launcher.reach is None:
        run = target.visible_run()
        yield run.checkpoints, choose(run, name, best=best)
        return
    options = ["--send", *(["--best"] if best else []), *(["--name", name] if name is not None else [])]
    with TemporaryDirectory(prefix="clustertrain-") as folder, TemporaryFile() as archive:
        launcher.reach.download(target, ["ckpt", "export", *options], archive)
        archive.seek(0)
        yield receive_model(archive, Path(folder))
