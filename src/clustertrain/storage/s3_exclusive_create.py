"""Exclusive creation of an object: by a conditional PUT or, on a server without those, by a contest.

Each contender puts a candidate object beside the key, then lists the candidates. A contender that finds only
its own candidate, and the key still free, has won: it writes the key and then deletes its candidate.

Safety (at most one wins), provided that a listing shows every object that was put before it: of two
contenders, the one that put its candidate later also lists later. It sees the candidate of the other one and
does not win; or the other one deleted its candidate after writing the key, and then the key is taken.

Liveness (one does win): a contender that finds another one withdraws for a random time, which grows. The
candidate of a dead owner is ignored once it is `_DEAD_AFTER_S` older than one's own, both by the server's
clock. An owner that could not write the key within a quarter of that time starts over. One case remains,
which only a conditional write excludes: a process that is stopped in the middle of its last request.
"""

from __future__ import annotations

import random
import time
import uuid
from contextlib import suppress
from functools import cache

from clustertrain.errors import StorageError
from clustertrain.storage.posix_tree import HIDDEN
from clustertrain.storage.s3_client import code_of, http_status_of
from clustertrain.storage.s3_objects import S3Objects

_DEAD_AFTER_S = 120.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


def create_exclusive(objects: S3Objects, key: str, data: bytes) -> bool:
    """Write `key` unless it exists. Returns True to exactly one of any number of callers."""
    writer = uuid.uuid4().hex
    if not _supports_conditions(objects):
        return _create_by_contest(objects, key, data, writer)
    # After a lost answer the PUT is repeated, and the second one finds the object of the first.
    return objects.put_if_absent(key, data, writer) or objects.read_with_writer(key) == (data, writer)


@cache
def _supports_conditions(objects: S3Objects) -> bool:
    """Return whether the server supports `If-None-Match: *`: of two PUTs of one key it refuses the second."""
    writer = uuid.uuid4().hex
    scratch = f"{HIDDEN}condition-{writer}"
    try:
        objects.put_if_absent(scratch, b"1", writer)  # False if its answer was lost and it was repeated
        is_supported = not objects.put_if_absent(scratch, b"2", writer) and objects.exists(scratch)
    except StorageError as error:
        with suppress(StorageError):  # the first error is the one to report, at once
            objects.within(0.0).remove(scratch)
        if error.__cause__ is None or not _is_about_the_header(error.__cause__):
            raise
        return False
    objects.remove(scratch)
    return is_supported


def _is_about_the_header(error: BaseException) -> bool:
    """Return whether a server refuses `If-None-Match` with 400, a status of other faults, instead of 501."""
    is_named = code_of(error) == "NotImplemented" or "if-none-match" in str(error).lower()
    return http_status_of(error) == 400 and is_named


def _create_by_contest(objects: S3Objects, key: str, data: bytes, writer: str) -> bool:
    """Write `key` unless it exists. Returns True to at most one of any number of callers."""
    folder, _, name = key.rpartition("/")
    contest = f"{folder}/.contest-{name}".lstrip("/")
    own, pause_s = f"{contest}/{writer}", _FIRST_PAUSE_S
    while not objects.exists(key):
        until_s = time.monotonic() + _DEAD_AFTER_S / 4
        objects.write_atomic(own, b"")
        try:
            is_free = _is_alone(objects, contest, own) and not objects.exists(key)
            left_s = until_s - time.monotonic()
            if is_free and left_s > 0:
                objects.within(left_s).write_atomic(key, data)
                return True
        finally:
            objects.remove(own)
        time.sleep(random.uniform(0, pause_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return False


def _is_alone(objects: S3Objects, contest: str, own: str) -> bool:
    """Remove the candidates of dead owners, and return whether only `own` is left."""
    candidates = dict(objects.below(contest))
    put_at = candidates.pop(own, None)
    if put_at is None:  # the listing is delayed, so it may also lack the others
        return False
    dead = {key for key, at in candidates.items() if (put_at - at).total_seconds() > _DEAD_AFTER_S}
    for key in dead:
        objects.remove(key)
    return candidates.keys() == dead
