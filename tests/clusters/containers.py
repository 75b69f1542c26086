"""Containers for tests, on a machine with root and podman, and with or without a registry.

    image = kit_image()                              # `make image`, once for what it is made of
    podman("run", "--rm", *RESTRICTED, image, "clustertrain", "--version").stdout
    with container(image, "sleep", "60") as name:    # gone afterwards
        podman("exec", name, "true")

Images lie in podman's own store, so that one is built once for all tests, and stay there.
"""

import contextlib
import fcntl
import functools
import hashlib
import itertools
import os
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters.machine import missing
from support.commands import Done, ran

ROOT = Path(__file__).parent.parent.parent
BASE = "docker.io/library/python:3.11-slim-bookworm"
# As the kit's pods run: nothing but a folder for temporary files can be written to, and no right is left.
RESTRICTED = (
    "--read-only",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    "--tmpfs=/tmp:mode=1777,exec",
    "--shm-size=512m",
)
_PROGRAMS = ("podman", "runc", "conmon", "netavark", "aardvark-dns", "debootstrap")
_HELPERS = "/usr/lib/podman:/usr/libexec/podman"
# By itself, root's podman raises both limits to more than a root without CAP_SYS_RESOURCE may have. Of the
# second, runc may not set all that there is. crun does not support cgroups of both versions at once.
_CONF = """\
[containers]
default_ulimits = ["nofile={nofile}", "nproc={nproc}"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[network]
network_backend = "netavark"
"""
_MADE_OF = (
    *("docker/Dockerfile", "docker/build.sh", "requirements/image.txt", "docker/health.py"),
    *("docker/inventory.py", "requirements/constraints.txt", "pyproject.toml", "README.md", "LICENSE", "src"),
    *("examples/digits/digits.py", "examples/digits/digits.tar.gz"),
)
_LIMITS = {"nofile": (resource.RLIMIT_NOFILE, 65536), "nproc": (resource.RLIMIT_NPROC, 32768)}
_BUILD_S = 1200
_numbers = itertools.count(1)


def why_not() -> str | None:
    """What this machine lacks for containers."""
    if os.geteuid() != 0:
        return "containers are made by root here"
    return missing({name: (name,) for name in _PROGRAMS}, _HELPERS)


@functools.cache
def environment() -> dict[str, str]:
    """What podman, and `make image` with it, is started with."""
    limits = {name: min(resource.getrlimit(which)[1], most) for name, (which, most) in _LIMITS.items()}
    folder = Path(tempfile.gettempdir(), f"clustertrain-containers-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    conf = folder / "containers.conf"
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as new:
        new.write(_CONF.format_map({name: f"{limit}:{limit}" for name, limit in limits.items()}))
    Path(new.name).replace(conf)
    return {**os.environ, "CONTAINERS_CONF": str(conf)}


def podman(*arguments: str, check: bool = True, timeout_s: float = 120) -> Done:
    return ran(["podman", *arguments], code=0 if check else None, env=environment(), timeout=timeout_s)


def told(done: Done) -> str:
    """The output, without podman's warning that there is no systemd for its health checks."""
    lines = [line for line in done.stderr.splitlines() if "systemd connection" not in line]
    return done.stdout + "\n".join(lines)


def unique(name: str) -> str:
    return f"ct-{name}-{os.getpid()}-{next(_numbers)}"


@contextlib.contextmanager
def container(image: str, *command: str, options: tuple[str, ...] = RESTRICTED) -> Iterator[str]:
    """One in the background; yields its name."""
    name = unique("one")
    podman("run", "--detach", f"--name={name}", *options, image, *command)
    try:
        yield name
    finally:
        podman("rm", "--force", "--time=0", "--volumes", name)


@pytest.fixture(scope="session")
def image() -> str:
    """The project's own image, for the tests of a folder whose conftest.py names this."""
    if reason := why_not():
        pytest.skip(reason)
    return kit_image()


def kit_image() -> str:
    """The project's own image, made by `make image` unless there is one of the same files."""
    made_of = hashlib.sha256()
    for path in _files():
        made_of.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode() + path.read_bytes())
    image = f"localhost/clustertrain:test-{made_of.hexdigest()[:12]}"
    with _alone("kit"):
        if not _exists(image):
            make_kit_image(image)
    return image


def make_kit_image(name: str, target: str = "cpu") -> None:
    """The project's own image, on this machine's base."""
    settings = (f"BASE={stand_in_base()}", "ENGINE=podman", f"CA_BUNDLE={ca_bundle() or ''}")
    make_image(f"IMAGE={name}", f"TARGET={target}", *settings)


def _files() -> Iterator[Path]:
    for name in _MADE_OF:
        path = ROOT / name
        found = path.rglob("*") if path.is_dir() else [path]
        yield from sorted(file for file in found if file.is_file() and "__pycache__" not in file.parts)


def project_image_of_the_docs() -> str:
    """The Dockerfile of a project in docs/guides/images.md."""
    return re.search(r"```dockerfile\n(.*?)```", (ROOT / "docs/guides/images.md").read_text(), re.DOTALL)[1]


def make_image(*settings: str, check: bool = True) -> Done:
    argv = ["make", "--no-print-directory", "image", *settings]
    return ran(argv, code=0 if check else None, cwd=ROOT, env=environment(), timeout=_BUILD_S)


def stand_in_base() -> str:
    """The base that the Dockerfile names; made of Debian's packages where no registry can be reached."""
    with _alone("base"):
        if not _exists(BASE) and podman("pull", "--quiet", BASE, check=False, timeout_s=600).returncode:
            _make_base()
    return BASE


def _exists(image: str) -> bool:
    return podman("image", "exists", image, check=False).returncode == 0


def _make_base() -> None:
    with tempfile.TemporaryDirectory(prefix="ct-base-") as folder:
        root = f"{folder}/root"
        packages = "--include=python3,python3-venv,ca-certificates"
        command = ("debootstrap", "--variant=minbase", packages, "bookworm", root)
        ran(command, code=0, timeout=_BUILD_S)
        # Where and how python:3.11-slim has it.
        for name in ("python", "python3"):
            Path(root, "usr/local/bin", name).symlink_to("/usr/bin/python3")
        Path(root, "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink()
        shutil.rmtree(f"{root}/var/lib/apt/lists")
        shutil.rmtree(f"{root}/var/cache/apt/archives")
        path = "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        ran(["tar", "-C", root, "-cf", f"{folder}/root.tar", "."], code=0, timeout=_BUILD_S)
        changes = [f"--change=ENV {path}", '--change=CMD ["python3"]']
        podman("import", "--quiet", *changes, f"{folder}/root.tar", BASE)


@functools.cache
def ca_bundle() -> str | None:
    """The file of certificates in the configuration of pip, if there is one: those of a proxy."""
    for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        if os.environ.get(name):
            return os.environ[name]
    asked = [sys.executable, "-m", "pip", "config", "get", "global.cert"]
    return ran(asked).stdout.strip() or None


@contextlib.contextmanager
def _alone(what: str) -> Iterator[None]:
    """One process of tests at a time; the others find what it made."""
    folder = Path(environment()["CONTAINERS_CONF"]).parent
    with (folder / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
