"""Whether the kernel killed a process for memory: from its counters, read before and after the end.

An unchanged run would reach the limit again, so the run is not started again after such a kill.
"""

from __future__ import annotations

from clustertrain.node.limits import Cgroup, Limits
from clustertrain.node.units import size_text

_CLOSE = 0.95  # of a limit


def kill_for_memory(who: str, before: Limits, now: Limits | None) -> str | None:
    """Return what happened to a process that died of SIGKILL, or None without evidence of a kill for memory.

    The evidence is that the kernel's counters of out-of-memory kills grew meanwhile.

    Args:
        who: "rank 1 (pid 4711 on node7)".
        before: the limits of its node when it started.
        now: the same after its end, or None if no process of its node answered.
    """
    if now is None:
        return None
    pairs = [(a, b) for a, b in zip(before.cgroups, now.cgroups, strict=False) if a.path == b.path]
    known = [(a, b) for a, b in pairs if a.oom_kills is not None and b.oom_kills is not None]
    if struck := next(((a, b) for a, b in known if (b.oom_kills or 0) > (a.oom_kills or 0)), None):
        full, (was, now_is) = _reached(pairs), struck
        whose = "" if full is not None and full.path == now_is.path else f" of {now_is.path}"
        count = f"oom_kill{whose}: {was.oom_kills} → {now_is.oom_kills}"
        if full is not None:
            return (
                f"{who} was killed by the kernel: its cgroup {full.path} allows "
                f"{size_text(full.limit_bytes or 0)} of memory "
                f"({full.limit_file} = {full.limit_bytes}; {count})."
            )
        return _of_machine(who, count, now)
    # The machine's counter is used only if the cgroups have no counters.
    if not known and (now.oom_kills or 0) > (before.oom_kills or 0):
        return _of_machine(who, f"oom_kill in /proc/vmstat: {before.oom_kills} → {now.oom_kills}", now)
    return None


def _reached(pairs: list[tuple[Cgroup, Cgroup]]) -> Cgroup | None:
    """Return the innermost cgroup that reached its limit meanwhile; otherwise one that came close to it.

    A pod has the limit of its only container and uses a little more itself: then the pod's cgroup reaches its
    limit, and it is not visible from the container.
    """
    limited = [(a, b) for a, b in pairs if b.limit_bytes is not None]
    met = (b for a, b in limited if (b.limit_met or 0) > (a.limit_met or 0))
    close = (b for _, b in limited if (b.peak_bytes or 0) >= _CLOSE * (b.limit_bytes or 0))
    return next(met, None) or next(close, None)


def _of_machine(who: str, count: str, now: Limits) -> str:
    memory = size_text(now.memory_bytes) if now.memory_bytes else "unknown"
    return f"{who} was killed by the kernel: the machine's memory was used up ({memory} in all; {count})."
