"""What the clusters of namespaces share: what they need of this machine, and the way into them."""

import ipaddress
import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from support.commands import ran

NAMESPACES = ["unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child"]


def search_path() -> str:
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def missing(packages: Mapping[str, Sequence[str]], path: str | None = None) -> str | None:
    """How to install the packages that this machine lacks. A package is there if its programs are.

    Args:
        path: where else programs are, separated by colons.
    """
    path = f"{path}:{search_path()}" if path else search_path()
    absent = [
        package
        for package, programs in packages.items()
        if not all(shutil.which(program, path=path) for program in programs)
    ]
    return f"missing: apt-get install --no-install-recommends {' '.join(absent)}" if absent else None


def no_namespaces() -> str | None:
    """Why this user cannot make them."""
    if os.geteuid() != 0:
        return "a cluster of namespaces needs root"
    tried = ran(["unshare", "-mnpuif", "true"])
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else None


def inside(pid: int | str) -> list[str]:
    """The beginning of a command line that runs in the namespaces of a process."""
    return ["nsenter", f"--target={pid}", "--mount", "--uts", "--ipc", "--net", "--pid"]


def free_subnets(*networks: str, prefix: int) -> Iterator[ipaddress.IPv4Network]:
    """The subnets that this machine does not use, in any order; another process may take one meanwhile."""
    routes = json.loads(ran(["ip", "-json", "-4", "route"], code=0).stdout)
    used = [ipaddress.ip_network(route["dst"]) for route in routes if route["dst"] != "default"]
    subnets = [each for net in networks for each in ipaddress.ip_network(net).subnets(new_prefix=prefix)]
    random.SystemRandom().shuffle(subnets)  # not the generator that a test may have seeded
    return (each for each in subnets if not any(network.overlaps(each) for network in used))


def lay_cable(link: str, address: str, pid: int | str) -> None:
    """From this machine, which has this address there, into the network of a process: to its `uplink`."""
    for words in (
        ("link", "add", link, "type", "veth", "peer", "name", "uplink", "netns", str(pid)),
        ("address", "add", address, "dev", link),
        ("link", "set", link, "up"),
    ):
        ran(["ip", *words], code=0)


def last_words(logs: Path) -> str:
    """The end of each log in a folder."""
    ends = [f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in sorted(logs.iterdir())]
    return "\n".join(ends)
