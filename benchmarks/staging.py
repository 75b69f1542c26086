"""`aws s3 cp` compared with clustertrain's `stage()`: the same object from the same server, alternately.

    python benchmarks/staging.py --folder <on the disk to measure> [--size 1Gi] [--rounds 5] [--json FILE]

The server is versitygw on loopback, started by this script over files in the same folder. Each copy is a
separate process, measured from start to end, so that both include their imports. `stage()` does more work: it
computes and compares the sha256, records its progress for a resume, and has the file on disk (sync) when it
returns. Peak RSS is that of the process. `--json` writes the seconds of each side.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clustertrain.units import size_bytes

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "benchmark",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
STAGE = """
import sys
from pathlib import Path
from clustertrain.staging.stage import stage
from clustertrain.storage.location import Location
location = Location("s3://bench/data.bin", endpoint=sys.argv[1], region="us-east-1")
stage("data", location, sha256=sys.argv[3], extract=False, into=Path(sys.argv[2]))
"""
EMPTY = "import boto3, clustertrain.staging.stage"


@dataclass(frozen=True)
class Measured:
    """Wall and CPU seconds of one process, and its largest resident set in bytes."""

    wall_s: float
    cpu_s: float
    rss_bytes: int


def run(argv: list[str]) -> Measured:
    """One process from its start to its end."""
    began = time.perf_counter()
    process = subprocess.Popen(argv, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.DEVNULL)
    _, code, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise SystemExit(f"{argv[0]} ended with {process.returncode}")
    return Measured(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10)


@contextmanager
def serving(binary: str, folder: Path) -> Iterator[str]:
    """versitygw over `folder`; its address."""
    for name in ("root", "sidecar"):
        (folder / name).mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        "ROOT_ACCESS_KEY": ENVIRONMENT["AWS_ACCESS_KEY_ID"],
        "ROOT_SECRET_KEY": ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
    }
    argv = [binary, "--port", f"127.0.0.1:{port}", "--quiet", "posix"]
    argv += ["--sidecar", str(folder / "sidecar"), str(folder / "root")]
    with subprocess.Popen(argv, env={**os.environ, **environment}, stdout=subprocess.DEVNULL) as server:
        try:
            while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
                if server.poll() is not None:
                    raise SystemExit(f"{binary} ended with {server.returncode}")
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def make_object(path: Path, size: int) -> str:
    """A file of random bytes; its sha256."""
    hashed = hashlib.sha256()
    with path.open("wb") as file:
        for at in range(0, size, 1 << 20):
            block = os.urandom(min(1 << 20, size - at))
            hashed.update(block)
            file.write(block)
    return hashed.hexdigest()


def measure(folder: Path, binary: str, size: int, rounds: int) -> dict[str, list[Measured]]:
    """The two copies by turns, after one of each that does not count."""
    sha256 = make_object(folder / "data.bin", size)
    found: dict[str, list[Measured]] = {"aws s3 cp": [], "stage()": []}
    with serving(binary, folder) as endpoint:
        aws = [str(Path(sys.executable).parent / "aws"), "--endpoint-url", endpoint, "s3"]
        run([*aws, "mb", "s3://bench"])
        run([*aws, "cp", "--quiet", str(folder / "data.bin"), "s3://bench/data.bin"])
        (folder / "data.bin").unlink()
        os.sync()
        copies = {
            "aws s3 cp": [*aws, "cp", "--quiet", "s3://bench/data.bin", str(folder / "copied")],
            "stage()": [sys.executable, "-c", STAGE, endpoint, str(folder / "staged"), sha256],
        }
        for number in range(rounds + 1):
            order = list(copies) if number % 2 else list(copies)[::-1]
            for name in order:
                measured = run(copies[name])
                (folder / "copied").unlink(missing_ok=True)
                shutil.rmtree(folder / "staged", ignore_errors=True)
                os.sync()  # what one left to be written must not slow the other
                if number:
                    found[name].append(measured)
    return found


def print_table(found: dict[str, list[Measured]], size: int) -> None:
    print(f"{'':12} {'median s':>9} {'min':>7} {'max':>7} {'MiB/s':>7} {'CPU s':>7} {'peak RSS MiB':>13}")
    medians = {}
    for name, runs in found.items():
        walls = [each.wall_s for each in runs]
        medians[name] = statistics.median(walls)
        cpu_s = statistics.median(each.cpu_s for each in runs)
        rss = max(each.rss_bytes for each in runs) / (1 << 20)
        speed = size / (1 << 20) / medians[name]
        print(
            f"{name:12} {medians[name]:9.2f} {min(walls):7.2f} {max(walls):7.2f} {speed:7.0f} "
            f"{cpu_s:7.2f} {rss:13.0f}"
        )
    print(f"speed of stage() / speed of aws s3 cp: {medians['aws s3 cp'] / medians['stage()']:.2f}")
    baseline = run([sys.executable, "-c", EMPTY]).rss_bytes / (1 << 20)
    print(f"baseline of stage(), its imports alone: {baseline:.0f} MiB")
    print("stage() also verifies sha256 and syncs the file to disk; aws s3 cp does neither")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="a folder on the disk to measure")
    parser.add_argument("--size", type=size_bytes, default="1Gi")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    beside = shutil.which("versitygw", path=str(Path(sys.executable).parent))
    parser.add_argument(
        "--versitygw", default=beside or shutil.which("versitygw"), help="the server's binary"
    )
    arguments = parser.parse_args()
    if arguments.versitygw is None:
        parser.error("there is no versitygw here: `make test` builds it where there is Go, or name one")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder.resolve(), prefix="staging-") as folder:
        found = measure(Path(folder), arguments.versitygw, arguments.size, arguments.rounds)
    print_table(found, arguments.size)
    if arguments.json:
        seconds = {side: [each.wall_s for each in runs] for side, runs in found.items()}
        arguments.json.write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()
