"""Every error that a user can see, with its exit code.

    ClusterTrainError          1  training failed, or clustertrain itself failed
    ├── JobError               2  the job file or the arguments are wrong, on every machine
    ├── ClusterError           3  a cluster or its hardware refuses or cannot be reached
    └── StorageError           4  data or storage: checksum, archive, not writable
        └── DataError          4  the same, for a data set
    RunStopped                    not an error: 75 stopped with a checkpoint, 130 without one

The message of an error has two or three lines: the value and the rule it breaks, the arithmetic if there is
any, and the remedy. The command line prints this message and no traceback.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_JOB = 2
EXIT_CLUSTER = 3
EXIT_STORAGE = 4
EXIT_STOPPED = 75
EXIT_INTERRUPTED = 130
EXIT_RAY_ENDED = 70
"""A driver whose Ray has ended exits with it. No command does."""
EXIT_DRIVER_FAILED = 71
"""A driver that could not write its result exits with it. No command does."""


class ClusterTrainError(Exception):
    """Training failed, or clustertrain itself failed; the root of the tree."""

    exit_code = EXIT_FAILED


class JobError(ClusterTrainError):
    """The job file or an argument is wrong, on every machine.

    Args:
        at: the keys of the job file that it is about, such as ("train", "loss"). Where the file is known, its
            line and column are put before the message.
    """

    exit_code = EXIT_JOB

    def __init__(self, message: str, at: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.at = at


class ClusterError(ClusterTrainError):
    """A cluster or its hardware refuses, is too small, or does not answer."""

    exit_code = EXIT_CLUSTER


class StorageError(ClusterTrainError):
    """Storage cannot be read or written, or contains bytes that do not verify."""

    exit_code = EXIT_STORAGE


class DataError(StorageError):
    """A data set cannot be fetched, does not match its checksum, or its archive is unsafe."""


def error_of_code(exit_code: int, text: str) -> ClusterTrainError:
    """Return the error with that exit code."""
    kinds: tuple[type[ClusterTrainError], ...] = (JobError, ClusterError, StorageError)
    return next((each for each in kinds if each.exit_code == exit_code), ClusterTrainError)(text)


class RunStopped(Exception):
    """A run ended early on request."""

    def __init__(self, message: str, *, checkpointed: bool = False) -> None:
        # The default is for pickle, between the controller and the driver: it sets the attributes afterwards.
        super().__init__(message)
        self.checkpointed = checkpointed
        self.exit_code = EXIT_STOPPED if checkpointed else EXIT_INTERRUPTED
