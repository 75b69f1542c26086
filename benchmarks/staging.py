"""clustertrain's `stage()` compared with the programs that people use for the same, alternately.

    python benchmarks/staging.py --folder <on the disk to measure> [--size 1Gi] [--rounds 5] [--json FILE]
    python benchmarks/staging.py --folder … --what s3 http tar [--files 100000]

s3: the same object from the same server, with `aws s3 cp`. http: the same object through a signed address,
with `curl`. tar: an archive of many small files on the disk, with `tar -x`. The server is versitygw on
loopback, started by this script over files in the same folder. Each copy is a separate process, measured from
start to end, so that all include their imports. `stage()` does more work: it computes and compares the
sha256, checks the members of an archive, and has all on disk (sync) when it returns.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import boto3
from botocore.config import Config
from comparison.figures import AWS, CURL, EXTRACT, STAGE, STAGE_HTTP, TAR
from comparison.processes import run
from comparison.turns import by_turns, parser_of, show, write

from clustertrain.node.units import size_bytes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.s3_servers import ENVIRONMENT, Versitygw

_STAGE = """
import sys
from pathlib import Path
from clustertrain.staging.stage import stage
from clustertrain.storage.location import Location
uri, into, sha256, endpoint, extract = sys.argv[1:]
location = Location(uri, endpoint=endpoint, region="us-east-1") if endpoint else Location(uri)
stage("data", location, sha256=sha256, extract=extract == "yes", into=Path(into))
"""
SIDES = {"s3": (AWS, STAGE), "http": (CURL, STAGE_HTTP), "tar": (TAR, EXTRACT)}
SMALL_FILE_BYTES = 2048


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
    return [sys.executable, "-c", _STAGE, *argv]


def of_server(folder: Path, endpoint: str, size: int) -> dict[str, list[str]]:
    """The copies of one object, which is put on the server."""
    sha256, at = make_object(folder / "data.bin", size), "s3://bench/data.bin"
    aws = [str(Path(sys.executable).parent / "aws"), "--endpoint-url", endpoint, "s3"]
    subprocess.run([*aws, "mb", "s3://bench"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*aws, "cp", "--quiet", str(folder / "data.bin"), at], check=True)
    (folder / "data.bin").unlink()
    client = boto3.client("s3", endpoint_url=endpoint, config=Config(signature_version="s3v4"))
    signed = client.generate_presigned_url("get_object", Params={"Bucket": "bench", "Key": "data.bin"})
    return {
        AWS: [*aws, "cp", "--quiet", at, str(folder / "copied")],
        STAGE: staging(at, folder, sha256, endpoint),
        CURL: ["curl", "--silent", "--fail", "--output", str(folder / "copied"), signed],
        STAGE_HTTP: staging(signed, folder, sha256),
    }


def of_archive(folder: Path, files: int) -> dict[str, list[str]]:
    """The two ways to unpack an archive."""
    sha256 = make_tar(folder / "files.tar", files)
    return {
        TAR: ["tar", "-x", "-f", str(folder / "files.tar"), "-C", str(folder / "unpacked")],
        EXTRACT: staging(str(folder / "files.tar"), folder, sha256, extract=True),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="a folder on the disk to measure")
    parser.add_argument("--what", nargs="+", choices=SIDES, default=["s3"])
    parser.add_argument("--size", type=size_bytes, default="1Gi", help="of the object")
    parser.add_argument("--files", type=int, default=100_000, help="in the archive")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory(dir=options.folder.resolve(), prefix="staging-") as name:
        folder, copies = Path(name), dict[str, list[str]]()
        with Versitygw(folder / "server") as server:
            if {"s3", "http"} & {*options.what}:
                copies |= of_server(folder, server.endpoint, options.size)
            if "tar" in options.what:
                copies |= of_archive(folder, options.files)

            def copy(_number: int, side: str) -> float:
                (folder / "unpacked").mkdir()
                os.sync()  # what one left to be written must not slow the other
                seconds = run(copies[side]).wall_s
                (folder / "copied").unlink(missing_ok=True)
                for each in ("staged", "unpacked"):
                    shutil.rmtree(folder / each, ignore_errors=True)
                return seconds

            wanted = [side for what in options.what for side in SIDES[what]]
            found = by_turns(wanted, options.rounds, copy)
    write(options.json, found)
    for what in options.what:
        show(what, {side: found[side] for side in SIDES[what]}, SIDES[what][1])


if __name__ == "__main__":
    main()
