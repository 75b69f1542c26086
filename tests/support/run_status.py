"""The status of a run in a visible storage, as `ls` shows it."""

from clustertrain.launchers.listing import statuses_of
from clustertrain.observe.status import Status, read_files
from clustertrain.run_files.folder.run_dir import RunDir


def status_of(run: RunDir) -> Status:
    return statuses_of([read_files(run)])[0]
