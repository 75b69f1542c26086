"""The stacks of a script, a process of its own: only py-spy can read them from outside, where it is installed
and the kernel allows it. faulthandler would have to be registered by the script itself."""

from __future__ import annotations

import re
import shutil

from clustertrain.worker.scripts.script import printed

_FRAME = re.compile(r"^ {4}(?P<function>.+) \((?P<place>[^()]+:\d+)\)$")
_LIMIT_S = 8.0


def printed_stacks(pid: int) -> str:
    """What `py-spy dump` prints of a process, or why there is nothing."""
    if (program := shutil.which("py-spy")) is None:
        return "py-spy is not installed on the node, so the frames of the script are unknown"
    return printed([program, "dump", "--pid", str(pid)], _LIMIT_S)


def python_frames(text: str, pid: int) -> tuple[str, ...]:
    """The frames of the main thread, whose id is that of its process, in what py-spy printed of it; the
    innermost first."""
    main = text.partition(f"\nThread {pid} ")[2].partition("\n\n")[0]
    found = filter(None, map(_FRAME.match, main.splitlines()))
    return tuple(f"{match['place']} in {match['function']}" for match in found)
