"""What a pod has and what it reaches; a program of its own, run there by the image's Python.

python -c "$(cat network_probe.py)" sockets                        that listen, and their processes
python -c "$(cat network_probe.py)" reach '[["10.0.0.3", 6379]]'   of these, the ones that take a connection
python -c "$(cat network_probe.py)" name kubernetes.default        whether DNS knows it
"""

import json
import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

TIMEOUT_S = 4.0  # two tries of a connection; what a policy does not let through is silent
_LISTENS = "0A"


def sockets() -> dict[str, list]:
    """TCP: [address, port, command line, pid]; UDP, and abstract names, which nothing should have."""
    found: dict[str, list] = {"tcp": [], "udp": [], "abstract": []}
    owners = _owners()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, peer, state, *_, inode = line.split()[:10]
            address, port = local.split(":")
            if table.startswith("tcp") and state == _LISTENS:
                found["tcp"].append([_address(address), int(port, 16), *owners.get(inode, ("?", 0))])
            elif table.startswith("udp") and int(peer.split(":")[1], 16) == 0:
                found["udp"].append([_address(address), int(port, 16), *owners.get(inode, ("?", 0))])
    found["abstract"] = re.findall(r" (@\S+)$", Path("/proc/net/unix").read_text(), re.MULTILINE)
    return found


def _owners() -> dict[str, tuple[str, int]]:
    """The command line and the pid of the process that holds a socket, by the socket's inode."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            for each in (process / "fd").iterdir():
                with suppress(OSError):
                    if match := re.fullmatch(r"socket:\[(\d+)\]", str(each.readlink())):
                        found[match[1]] = command, int(process.name)
    return found


def _address(text: str) -> str:
    """As /proc writes it: each word of 32 bits in the machine's own order."""
    words = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    return socket.inet_ntop(socket.AF_INET if len(words) == 4 else socket.AF_INET6, words)


def reach(targets: list[tuple[str, int]]) -> list[tuple[str, int]]:
    def connects(target: tuple[str, int]) -> bool:
        with socket.socket() as client:
            client.settimeout(TIMEOUT_S)
            return client.connect_ex(tuple(target)) == 0

    with ThreadPoolExecutor(max(len(targets), 1)) as pool:
        answers = list(pool.map(connects, targets))
    return [target for target, answer in zip(targets, answers, strict=True) if answer]


def main(what: str, *arguments: str) -> None:
    if what == "sockets":
        print(json.dumps(sockets()))
    elif what == "reach":
        print(json.dumps(reach(json.loads(arguments[0]))))
    else:
        print(json.dumps(socket.gethostbyname(arguments[0])))


if __name__ == "__main__":
    main(*sys.argv[1:])
