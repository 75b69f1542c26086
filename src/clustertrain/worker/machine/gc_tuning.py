"""How often Python looks for unreachable cycles of objects while a process starts, and after that.

The imports of torch and Ray Train make a million objects, and all of them stay. By default Python looks
through them again and again meanwhile.
"""

from __future__ import annotations

import gc

_NEW_OBJECTS = 100_000  # until the next search: a user's data set may leave cycles as well
_usual = gc.get_threshold()
_rare = (_NEW_OBJECTS, *_usual[1:])


def collect_rarely() -> None:
    """Run Python's garbage collector rarely, while modules are imported."""
    gc.set_threshold(*_rare)


def collect_as_usual() -> None:
    """Collect once, freeze the survivors and restore the normal thresholds, before the first step.

    Thresholds that the user's code has set stay. Cheap if repeated.
    """
    if gc.get_threshold() == _rare:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_usual)
