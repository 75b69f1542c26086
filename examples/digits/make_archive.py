"""Creates digits.tar.gz from the digits.csv.gz in scikit-learn; README.md gives the source of the data.

    pip download --no-deps scikit-learn==1.7.2
    python -m zipfile -e scikit_learn-*.whl unpacked
    python make_archive.py unpacked/sklearn/datasets/data/digits.csv.gz

The same input gives the same bytes: names, times, owners and modes are fixed here.
"""

import gzip
import hashlib
import io
import sys
import tarfile
from pathlib import Path

# The checksum of the unpacked text, which is the same in every version of scikit-learn.
CSV_SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"
ARCHIVE = Path(__file__).with_name("digits.tar.gz")


def archive_bytes(csv: bytes) -> bytes:
    """A gzipped tar with one member, digits.csv."""
    member = tarfile.TarInfo("digits.csv")  # owner 0, time 0, mode 0644
    member.size = len(csv)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as file:
        file.addfile(member, io.BytesIO(csv))
    return gzip.compress(tar.getvalue(), compresslevel=9, mtime=0)


def main(source: str) -> None:
    csv = gzip.decompress(Path(source).read_bytes())
    found = hashlib.sha256(csv).hexdigest()
    if found != CSV_SHA256:
        sys.exit(f"{source} unpacks to sha256 {found},\nexpected {CSV_SHA256}: it is another file.")
    ARCHIVE.write_bytes(archive_bytes(csv))
    print(f"{hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()}  {ARCHIVE.name}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
