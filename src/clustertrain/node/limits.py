"""The limits of a node for its processes, read on the node itself: memory, /dev/shm, open files.

A value that cannot be read is None, and messages call it unknown. Counters are read when the workers start
and again when one has died: the difference shows what happened in between. psutil is not used: it reads no
cgroups.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clustertrain.node.processes import this_host

_UNLIMITED_BYTES = 1 << 60  # cgroups v1 write "no limit" as a number near 2^63


@dataclass(frozen=True)
class Cgroup:
    """One level of the memory cgroups that a process is in. Sizes in bytes.

    Attributes:
        path: its folder, as the node sees it.
        limit_file: its file with the limit, `memory.max` or (version 1) `memory.limit_in_bytes`.
        limit_bytes: None if there is no limit, or it is unknown.
        limit_met: how often memory use reached this limit.
        oom_kills: processes of it that the kernel killed for memory.
        peak_bytes: its highest memory use so far.
        used_bytes: its memory use now, without the page cache that the kernel drops first.
    """

    path: str
    limit_file: str
    limit_bytes: int | None
    limit_met: int | None
    oom_kills: int | None
    peak_bytes: int | None = None
    used_bytes: int | None = None


@dataclass(frozen=True)
class Limits:
    """The limits of a node as one of its processes reads them.

    Sizes are in bytes; `cgroups` are from the process's own to the root.
    """

    host: str  # processes.this_host(): only a process of this host can read them again
    cgroups: tuple[Cgroup, ...]
    memory_bytes: int | None
    available_bytes: int | None
    oom_kills: int | None  # of the whole machine
    shm_bytes: int | None
    shm_used_bytes: int | None
    open_files: int  # RLIMIT_NOFILE, the soft limit, which is the one in force
    open_files_most: int  # its hard limit: the soft one may be raised to it
    address_space_bytes: int | None  # RLIMIT_AS


def read_limits(cgroup_folders: Sequence[str] | None = None) -> Limits:
    """Read the limits of this process or, with `cgroup_folders`, of those cgroups.

    With the folders, another process of the node can read the counters of one that has died.
    """
    folders = own_cgroups() if cgroup_folders is None else cgroup_folders
    memory = _numbers("/proc/meminfo")
    shm_bytes, shm_used_bytes = _shm()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    return Limits(
        host=this_host(),
        cgroups=tuple(_cgroup(folder) for folder in folders),
        memory_bytes=_kib(memory.get("MemTotal:")),
        available_bytes=_kib(memory.get("MemAvailable:")),
        oom_kills=_numbers("/proc/vmstat").get("oom_kill"),
        shm_bytes=shm_bytes,
        shm_used_bytes=shm_used_bytes,
        open_files=soft,
        open_files_most=hard,
        address_space_bytes=None if address_space == resource.RLIM_INFINITY else address_space,
    )


def overload() -> str:
    """Return the load of this machine in the last minute as a sentence without its full stop.

    It is empty if each process that could run had a core.
    """
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f"The load of {this_host()} is {load:.0f}, and it has {cores} cores" if load > cores else ""


def process_state(pid: int) -> str | None:
    """Return the state in /proc of a process of this node, such as "T (stopped)", or None if it has ended."""
    for line in (_text(f"/proc/{pid}/status") or "").splitlines():
        if line.startswith("State:"):
            return line.removeprefix("State:").strip()
    return None


def own_cgroups() -> list[str]:
    """Return the folders of this process's memory cgroups.

    Its own is the first; its parents follow as far as they are visible.
    """
    return cgroup_folders(_text("/proc/self/cgroup") or "", _text("/proc/self/mountinfo") or "")


def cgroup_folders(memberships: str, mounts: str) -> list[str]:
    """Return the folders of own_cgroups from the text of /proc/self/cgroup and of /proc/self/mountinfo.

    Source: cgroups(7). In a container, the mount point may be the container's own cgroup while its name is
    longer: the root of the mount, the fourth field, is the part of the name to leave out.
    """
    member_of = {}  # "memory" or "" (version 2) → the cgroup's name
    for line in memberships.splitlines():
        _, controllers, name = line.split(":", 2)
        for controller in controllers.split(","):
            member_of[controller] = name
    for version in ("memory", ""):  # the memory controller is in v1 or in v2, never in both
        for line in mounts.splitlines():
            fields, _, filesystem = line.partition(" - ")
            kind, _, options = filesystem.split(" ", 2)
            root, mount_point = fields.split(" ")[3:5]
            is_it = kind == "cgroup2" if not version else kind == "cgroup" and "memory" in options.split(",")
            if is_it and version in member_of:
                return _outwards(Path(mount_point), Path(root), Path(member_of[version]))
    return []


def _outwards(mount_point: Path, root: Path, name: Path) -> list[str]:
    inner = name.relative_to(root) if name.is_relative_to(root) else Path()
    own = mount_point / inner
    return [str(own), *(str(p) for p in own.parents if p.is_relative_to(mount_point))]


def _cgroup(folder: str) -> Cgroup:
    path = Path(folder)
    if (path / "memory.limit_in_bytes").exists():
        name, met = "memory.limit_in_bytes", _number(_text(path / "memory.failcnt"))
        peak = _number(_text(path / "memory.max_usage_in_bytes"))
        used, cache = _number(_text(path / "memory.usage_in_bytes")), "total_inactive_file"
        kills = _numbers(path / "memory.oom_control").get("oom_kill")
    else:
        events = _numbers(path / "memory.events")
        name, met, kills = "memory.max", events.get("oom"), events.get("oom_kill")
        peak = _number(_text(path / "memory.peak"))
        used, cache = _number(_text(path / "memory.current")), "inactive_file"
    limit = _number(_text(path / name))  # "max" is not a number
    if limit is not None and limit >= _UNLIMITED_BYTES:
        limit = None
    if used is not None:
        used -= _numbers(path / "memory.stat").get(cache, 0)
    return Cgroup(folder, name, limit, met, kills, peak, used)


def _shm() -> tuple[int | None, int | None]:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None, None
    return found.f_blocks * found.f_frsize, (found.f_blocks - found.f_bfree) * found.f_frsize


def _numbers(path: str | Path) -> dict[str, int]:
    """Read the lines of a name and a number; return none if the file cannot be read."""
    words: Iterable[list[str]] = (line.split() for line in (_text(path) or "").splitlines())
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None


def _kib(value: int | None) -> int | None:
    return None if value is None else value * 1024


def _text(path: str | Path) -> str | None:
    """Return the text of a small file, or None if it cannot be read.

    It may be missing, access may be denied, or no descriptor may be free.
    """
    try:
        return Path(path).read_text(errors="replace")  # the name of a process may be cut within a character
    except OSError:
        return None
