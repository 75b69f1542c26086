"""The worlds in which the processes of a schedule run: one on a file system, one on S3."""

import functools
import shutil
import tempfile
from pathlib import Path

import pytest
from substrates import S3, FileSystem, give_own_time, serve, stop_renewals

from clustertrain.run_files import admission, recorded_job
from clustertrain.storage import Store, open_store


def _once_of_each(function):
    known = {}  # with the argument itself, so that its id is not used again
    return lambda value: (
        known.setdefault(id(value), (value, function(value)))[1]
        if id(value) not in known
        else known[id(value)][1]
    )


class World:
    """A storage of its own for each run of a schedule, as `prepare` left it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind, self.root, self._template = kind, folder / "storage", folder / "template"
        self.spools = folder / "spools"
        self.server = S3()
        self._objects: dict = {}
        self.storage = str(self.root) if kind == "files" else "s3://bucket/runs"

    @property
    def store(self) -> Store:
        return open_store(self.storage)

    def keep(self) -> None:
        """What is there now is there at the start of each run."""
        self._objects = dict(self.server.objects)
        shutil.copytree(self.root, self._template)

    def begin(self) -> None:
        self.server.objects = dict(self._objects)
        shutil.rmtree(self.spools, ignore_errors=True)
        shutil.rmtree(self.root)
        shutil.copytree(self._template, self.root)


@pytest.fixture
def folder():
    """In memory, because nothing of it has to survive and every run writes it again."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="ct-schedule-", dir=memory if memory.is_dir() else None))
    yield made
    shutil.rmtree(made)


@pytest.fixture(params=["files", "s3"])
def world(request, folder, monkeypatch):
    made = World(folder, request.param)
    made.root.mkdir()
    with monkeypatch.context() as patch:
        # Most of the time would be YAML's.
        patch.setattr(recorded_job, "parse_job", functools.cache(recorded_job.parse_job))
        patch.setattr(
            admission, "check_storage", lambda location: None
        )  # its files have other names each time
        patch.setattr(recorded_job, "record_of", _once_of_each(recorded_job.record_of))
        FileSystem(made.root, patch)
        serve(patch, made.server)
        give_own_time(patch, made.spools)
        stop_renewals(patch)
        yield made
