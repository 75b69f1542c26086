"""Writes an archive in the format of cifar-100-binary.tar.gz with generated images, to measure and to test.

    python make_archive.py cifar-100-binary.tar.gz
    python make_archive.py small.tar.gz --train 2000 --test 500

Each of the 100 classes has a pattern of its own; an image is the pattern of its class with noise. A network
can learn the classes, but its accuracy has nothing to do with that on CIFAR-100.
"""

import argparse
import io
import tarfile

import numpy as np

FINE_PER_COARSE = 5  # 20 coarse classes; in CIFAR-100 the fine classes of one are not neighbours


def records(count, generator):
    """The bytes of `count` records: coarse class, fine class, 3 × 32 × 32 pixels."""
    pattern_generator = np.random.default_rng(100)  # the same patterns in both files
    patterns = pattern_generator.integers(0, 256, (100, 3, 8, 8)).repeat(4, axis=2).repeat(4, axis=3)
    return b"".join(
        _block(np.arange(start, min(start + 1000, count)) % 100, patterns, generator)
        for start in range(0, count, 1000)
    )


def _block(fine, patterns, generator):
    noise = generator.integers(-40, 41, (len(fine), 3, 32, 32))
    pixels = (patterns[fine] + noise).clip(0, 255).reshape(len(fine), -1)
    classes = np.stack([fine // FINE_PER_COARSE, fine], axis=1)
    return np.concatenate([classes, pixels], axis=1).astype(np.uint8).tobytes()


def write_archive(target, train, test, seed=0):
    """Writes cifar-100-binary/train.bin and test.bin, with so many records, as tar.gz to a path."""
    generator = np.random.default_rng(seed)
    with tarfile.open(target, "w:gz", compresslevel=1) as archive:
        for name, count in (("train.bin", train), ("test.bin", test)):
            data = records(count, generator)
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--train", type=int, default=50_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write_archive(args.target, args.train, args.test, args.seed)
