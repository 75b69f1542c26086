"""Containers on the nodes of a cluster: an image made of this machine, and podman set up to find it.

    engine = podman_site(folder)       # shared by all nodes
    engine.image                       # "localhost/python:test"
    engine.python, engine.mounts       # the Python that runs the tests, with all that is installed for it
    engine.variables                   # what podman is told; it travels with the job

No registry is asked: the image holds a shell and the libraries that this Python links to, and nothing else.
"""

import io
import os
import re
import resource
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusters.machine import missing
from clusters.slurm import CHECKOUT

IMAGE = "localhost/python:test"
_PYTHON = f"{sys.prefix}/bin/python"
_PROGRAMS = ("podman", "crun", "conmon", "netavark")
_HELPERS = "/usr/lib/podman:/usr/libexec/podman"
_TOOLS = ("/bin/bash", "/bin/sh", "/usr/bin/env")
# What a wheel may take for granted on a machine (PEP 513), beside what Python's own modules link to.
_LIBRARIES = (
    "libdl.so.2",
    "libgcc_s.so.1",
    "libpthread.so.0",
    "librt.so.1",
    "libstdc++.so.6",
    "libutil.so.1",
)
# Each node has its own, as it has its own /tmp; the store of images they share and only read. Of all drivers
# vfs, which copies the image for each container, is the one that every file system can do.
_CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile={nofile}", "nproc={nproc}"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "crun"
tmp_dir = "/tmp/podman/tmp"
"""
_STORAGE_CONF = """\
[storage]
driver = "vfs"
graphroot = "{store}"
runroot = "{store}-run"
[storage.options]
additionalimagestores = [{shared}]
"""


@dataclass(frozen=True)
class Engine:
    image: str
    python: str
    mounts: Sequence[str]
    variables: Mapping[str, str]


def why_not() -> str | None:
    """What this machine lacks for containers."""
    return missing({name: (name,) for name in _PROGRAMS}, _HELPERS)


def podman_site(folder: Path) -> Engine:
    """Podman as a site would set it up, in a folder that all nodes see. Takes a few seconds."""
    images, conf = folder / "images", folder / "containers.conf"
    # By itself, root's podman raises both to more than a root without CAP_SYS_RESOURCE may have.
    limits = {"nofile": _hard_limit(resource.RLIMIT_NOFILE), "nproc": _hard_limit(resource.RLIMIT_NPROC)}
    conf.write_text(_CONTAINERS_CONF.format_map(limits))
    making, running = folder / "making.conf", folder / "storage.conf"
    making.write_text(_STORAGE_CONF.format(store=images, shared=""))
    running.write_text(_STORAGE_CONF.format(store="/tmp/podman/store", shared=f'"{images}"'))
    _make_image({"CONTAINERS_CONF": str(conf), "CONTAINERS_STORAGE_CONF": str(making)}, folder / "tmp")
    variables = {"CONTAINERS_CONF": str(conf), "CONTAINERS_STORAGE_CONF": str(running)}
    return Engine(IMAGE, _PYTHON, [f"{path}:{path}:ro" for path in _python()], variables)


def _hard_limit(which: int) -> str:
    hard = resource.getrlimit(which)[1]
    return f"{hard}:{hard}"


def _python() -> Iterator[str]:
    """The folders and the file that a virtual environment's Python is made of; the checkout is installed."""
    yield str(CHECKOUT)
    if not Path(sys.prefix).is_relative_to(CHECKOUT):
        yield sys.prefix
    yield sysconfig.get_path("stdlib")
    yield str(_base_python())


def _base_python() -> Path:
    """Where the virtual environment's link to its Python leads."""
    link = Path(_PYTHON)
    while link.is_relative_to(sys.prefix):
        link = link.parent / link.readlink()
    return link


def _make_image(variables: Mapping[str, str], scratch: Path) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", dereference=True) as archive:
        for path in sorted(_files()):
            archive.add(path)
    done = subprocess.run(
        ["podman", f"--tmpdir={scratch}", "import", "--quiet", "-", IMAGE],
        input=content.getbuffer(),
        env={**os.environ, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"podman import ended with {done.returncode}:\n{done.stderr.decode()}")


def _files() -> set[str]:
    """Absolute paths: the tools, and every library that something here links to."""
    modules = Path(sysconfig.get_path("stdlib"), "lib-dynload").glob("*.so")
    linked = subprocess.run(
        ["ldd", *_TOOLS, str(_base_python()), *map(str, modules)], capture_output=True, text=True, check=True
    )
    libraries = set(re.findall(r"(/\S+) \(0x", linked.stdout))
    libc = next(Path(library) for library in libraries if "/libc.so." in library)
    return {*_TOOLS, *libraries, *(str(libc.with_name(name)) for name in _LIBRARIES)}
