"""A data set is staged once: the lease of its download, and the marker that is published with its bytes."""

import io
import tarfile
from pathlib import Path

import pytest
from schedule import NIGHTLY, Process, Schedule, explore_at_random, outcomes

from clustertrain.staging.entry import MARKER, StagedData
from clustertrain.staging.stage import stage
from clustertrain.storage import Location

FILES = {"a": b"1" * 40, "b/c": b"2" * 50}
LEASE_S = 1.0

pytestmark = pytest.mark.parametrize("world", ["files"], indirect=True)


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "data.tar"
    with tarfile.open(path, "w") as packed:
        for name, data in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))
    return Location(str(path))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def several(world, archive, hosts):
    """The scenario in which one process on each of these hosts stages the archive."""
    into = world.root / "data"
    into.mkdir()
    world.keep()
    folder = StagedData.of(archive, None, True, into).folder

    def stages():
        path = stage("d", archive, sha256=None, extract=True, into=into, lease_s=LEASE_S)
        with Schedule.unseen():
            return contents(path), folder.stat().st_ino

    def scenario():
        world.begin()

        def check(schedule):
            if (folder / MARKER).exists():
                assert contents(folder / "content") == FILES, "the marker is there, and not all of its bytes"
            for outcome in outcomes(schedule):
                assert isinstance(outcome, tuple), repr(outcome)
                assert outcome == (FILES, folder.stat().st_ino), "what was published is another one now"

        return [Process(n, stages, host=host) for n, host in enumerate(hosts)], check

    return scenario


@pytest.mark.parametrize("hosts", ["xy", "xx", "xyy"])
def test_one_of_several_publishes_all_of_its_bytes(world, archive, hosts):
    """A holder may be stopped for as long as a lease lasts, at any moment, and go on afterwards."""
    explore_at_random(several(world, archive, hosts), range(3000 if NIGHTLY else 150), losses=0)
