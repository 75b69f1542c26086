"""The image's HEALTHCHECK: every raylet that runs here is asked; where none does, that Python starts is all.

KubeRay's probes ask the same question of the same server. Only the standard library, so that it takes 0.1 s.
"""

import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

_TIMEOUT_S = 5.0


def _raylets() -> Iterator[tuple[str, int]]:
    """The pid of each, and the port on which its agent answers."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
        port = re.search(r"--listen-port=(\d+)", command)
        if command.partition("\0")[0].endswith("/raylet") and port:
            yield process.name, int(port[1])


def _wrong_with(port: int) -> str | None:
    # A company's proxy in the environment is not asked for the way to this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/api/healthz", timeout=_TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        return error.read().decode(errors="replace")
    except OSError as error:
        return str(error)


def main() -> int:
    wrong = [f"raylet {pid}: {why}" for pid, port in _raylets() if (why := _wrong_with(port))]
    print("\n".join(wrong) or "well")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
