"""clustertrain's `stage()` compared with the programs that people use for the same, alternately.

    python benchmarks/staging.py --folder <on the disk to measure> [--size 1Gi] [--rounds 5] [--json FILE]
    python benchmarks/staging.py --folder … --what s3 http tar [--files 100000]

s3: the same object from the same server, with `aws s3 cp`. http: the same object through a signed address,
with `curl`. tar: an archive of many small files on the disk, with `tar -x`. The server is versitygw on
loopback, started by this script over files in the same folder. Each copy is a separate process, measured from
start to end, so that all include their imports. `stage()` does more work: it computes and compares the
sha256, checks the members of an archive, and has all on disk (sync) when it returns. Peak RSS is that of the
process. `--json` writes the seconds of each side.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clustertrain.node.units import size_bytes

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
uri, into, sha256, endpoint, extract = sys.argv[1:]
location = Location(uri, endpoint=endpoint, region="us-east-1") if endpoint else Location(uri)
stage("data", location, sha256=sha256, extract=extract == "yes", into=Path(into))
"""
SIGN = """
import sys
import boto3
from botocore.config import Config
client = boto3.client("s3", endpoint_url=sys.argv[1], config=Config(signature_version="s3v4"))
print(client.generate_presigned_url("get_object", Params={"Bucket": "bench", "Key": "data.bin"}))
"""  # in a process of its own: a peak RSS is never less than that of the process that started it
EMPTY = "import boto3, clustertrain.staging.stage"
SIDES = {
    "s3": ("aws s3 cp", "stage()"),
    "http": ("curl", "stage(), http"),
    "tar": ("tar -x", "stage(), extract"),
}
SMALL_FILE_BYTES = 2048


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


def make_tar(path: Path, files: int) -> str:
    """An archive of small files in folders of a thousand; its sha256."""
    with tarfile.open(path, "w") as archive:
        for number in range(files):
            member = tarfile.TarInfo(f"images/{number // 1000:03d}/{number:06d}.bin")
            member.size = SMALL_FILE_BYTES
            archive.addfile(member, io.BytesIO(os.urandom(SMALL_FILE_BYTES)))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def staging(uri: str, folder: Path, sha256: str, endpoint: str = "", *, extract: bool = False) -> list[str]:
    argv = [uri, str(folder / "staged"), sha256, endpoint, "yes" if extract else ""]
    return [sys.executable, "-c", STAGE, *argv]


def of_server(folder: Path, endpoint: str, size: int) -> dict[str, list[str]]:
    """The copies of one object, which is put on the server."""
    sha256, at = make_object(folder / "data.bin", size), "s3://bench/data.bin"
    aws = [str(Path(sys.executable).parent / "aws"), "--endpoint-url", endpoint, "s3"]
    run([*aws, "mb", "s3://bench"])
    run([*aws, "cp", "--quiet", str(folder / "data.bin"), at])
    (folder / "data.bin").unlink()
    signed = subprocess.check_output(
        [sys.executable, "-c", SIGN, endpoint], env={**os.environ, **ENVIRONMENT}, text=True
    ).strip()
    return {
        "aws s3 cp": [*aws, "cp", "--quiet", at, str(folder / "copied")],
        "stage()": staging(at, folder, sha256, endpoint),
        "curl": ["curl", "--silent", "--fail", "--output", str(folder / "copied"), signed],
        "stage(), http": staging(signed, folder, sha256),
    }


def of_archive(folder: Path, files: int) -> dict[str, list[str]]:
    """The two ways to unpack an archive."""
    sha256 = make_tar(folder / "files.tar", files)
    return {
        "tar -x": ["tar", "-x", "-f", str(folder / "files.tar"), "-C", str(folder / "unpacked")],
        "stage(), extract": staging(str(folder / "files.tar"), folder, sha256, extract=True),
    }


def measure(copies: dict[str, list[str]], folder: Path, rounds: int) -> dict[str, list[Measured]]:
    """The copies by turns, after one of each that does not count."""
    found: dict[str, list[Measured]] = {side: [] for side in copies}
    for number in range(rounds + 1):
        for side in list(copies) if number % 2 else list(copies)[::-1]:
            (folder / "unpacked").mkdir()
            os.sync()  # what one left to be written must not slow the other
            measured = run(copies[side])
            (folder / "copied").unlink(missing_ok=True)
            for each in ("staged", "unpacked"):
                shutil.rmtree(folder / each, ignore_errors=True)
            if number:
                found[side].append(measured)
    return found


def print_table(found: dict[str, list[Measured]]) -> None:
    print(f"{'':16} {'median s':>9} {'min':>7} {'max':>7} {'CPU s':>7} {'peak RSS MiB':>13}")
    medians = {side: statistics.median(each.wall_s for each in runs) for side, runs in found.items()}
    for side, runs in found.items():
        walls = [each.wall_s for each in runs]
        cpu_s = statistics.median(each.cpu_s for each in runs)
        rss = max(each.rss_bytes for each in runs) / (1 << 20)
        print(f"{side:16} {medians[side]:9.2f} {min(walls):7.2f} {max(walls):7.2f} {cpu_s:7.2f} {rss:13.0f}")
    for peer, ours in SIDES.values():
        if peer in found:
            print(f"speed of {ours} / speed of {peer}: {medians[peer] / medians[ours]:.2f}")
    baseline = run([sys.executable, "-c", EMPTY]).rss_bytes / (1 << 20)
    print(f"baseline of stage(), its imports alone: {baseline:.0f} MiB")
    print("stage() also verifies sha256 and syncs the files to disk; the others do neither")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="a folder on the disk to measure")
    parser.add_argument("--what", nargs="+", choices=SIDES, default=["s3"])
    parser.add_argument("--size", type=size_bytes, default="1Gi", help="of the object")
    parser.add_argument("--files", type=int, default=100_000, help="in the archive")
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
    wanted = [side for what in arguments.what for side in SIDES[what]]
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder.resolve(), prefix="staging-") as name,
        serving(arguments.versitygw, Path(name)) as endpoint,
    ):
        folder, copies = Path(name), dict[str, list[str]]()
        if {"s3", "http"} & {*arguments.what}:
            copies |= of_server(folder, endpoint, arguments.size)
        if "tar" in arguments.what:
            copies |= of_archive(folder, arguments.files)
        found = measure({side: copies[side] for side in wanted}, folder, arguments.rounds)
    print_table(found)
    if arguments.json:
        seconds = {side: [each.wall_s for each in runs] for side, runs in found.items()}
        arguments.json.write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()
