"""Creating an object that only one may create, on a server without conditional writes.

Who wants the key puts a candidate beside it, then lists the candidates. Who finds its own alone, and the key
still free, has won and writes the key, and only then takes its candidate away.

Why at most one wins, where a listing shows what was put before it: of two contenders the one that put its
candidate later lists later still. It sees the other's candidate, and does not win; or the other took it away
after it had written the key, which is then found taken.

So that one does win: the smallest name waits while the others withdraw for a random moment. A candidate whose
owner died counts no longer once it is `_DEAD_AFTER_S` older than one's own, both by the server's clock; an
owner that could not write the key within a quarter of that does not try it any more. A process that is
stopped in between, right inside of its last request, is what this cannot exclude and a conditional write can.
"""

from __future__ import annotations

import random
import time

from clustertrain.storage.s3_bucket import Bucket, TooLate

_DEAD_AFTER_S = 120.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_LOOKS = 20


def create_by_contest(bucket: Bucket, key: str, data: bytes, writer: str) -> bool:
    """Write `key` unless it exists; True for at most one of any number of callers."""
    folder, _, name = key.rpartition("/")
    contest = f"{folder}/.contest-{name}/".lstrip("/")
    own, pause_s = contest + writer, _FIRST_PAUSE_S
    while bucket.head(key) is None:
        begun_at = time.monotonic()
        bucket.put(own, b"")
        try:
            if _is_alone(bucket, contest, own) and bucket.head(key) is None:
                bucket.put(key, data, writer=writer, before=begun_at + _DEAD_AFTER_S / 4)
                return True
        except TooLate:
            continue
        finally:
            bucket.delete(own)
        _pause(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return False


def _is_alone(bucket: Bucket, contest: str, own: str) -> bool:
    """Whether one's own candidate is the only one of the living; the smallest waits a while to be it."""
    for _ in range(_LOOKS):
        candidates = dict(bucket.below(contest))
        put_at = candidates.pop(own, None)
        if put_at is None:  # the listing is late: it says nothing of others either
            return False
        dead = [key for key, at in candidates.items() if (put_at - at).total_seconds() > _DEAD_AFTER_S]
        bucket.delete(*dead)
        living = candidates.keys() - set(dead)
        if not living:
            return True
        if own > min(living):
            return False
        _pause(_FIRST_PAUSE_S)
    return False


def _pause(seconds: float) -> None:
    time.sleep(random.uniform(0.5, 1.0) * seconds)
