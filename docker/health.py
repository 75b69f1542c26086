"""The image's HEALTHCHECK: queries the health of every raylet in the container. Without a raylet it succeeds.

KubeRay's probes use the same server and path. Uses only the standard library, so that it takes 0.1 s.
"""

import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

_TIMEOUT_S = 5.0


def _raylets() -> Iterator[tuple[str, int]]:
    """Yield the pid of each raylet, and the port of its agent."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
        port = re.search(r"--listen-port=(\d+)", command)
        if command.partition("\0")[0].endswith("/raylet") and port:
            yield process.name, int(port[1])


def _failure_of(port: int) -> str | None:
    # Requests to this machine must not go through a proxy that the environment sets.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/api/healthz", timeout=_TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        return error.read().decode(errors="replace")
    except OSError as error:
        return str(error)


def main() -> int:
    failures = [f"raylet {pid}: {why}" for pid, port in _raylets() if (why := _failure_of(port))]
    print("\n".join(failures) or "healthy")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
