"""Writes an archive of NIfTI volumes with MONAI's create_test_image_3d: spheres, and the mask of them.

    python make_archive.py volumes.tar
    python make_archive.py volumes.tar --count 40 --size 128      # the sizes of MONAI's own tutorial

One process makes the volumes, once. The job's `data` stages the archive on each node.
"""

import argparse
import tarfile
import tempfile
from pathlib import Path

import nibabel
import numpy as np
from monai.data import create_test_image_3d


def write_archive(target, count, size, seed=0):
    """Writes image_<i>.nii.gz and label_<i>.nii.gz, (size, size, size, 1) each, as tar to a path."""
    random = np.random.RandomState(seed)
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(target, "w") as archive:
        for i in range(count):
            volumes = create_test_image_3d(
                *(size, size, size),
                rad_max=min(30, size // 3 - 1),
                noise_max=0.5,
                num_seg_classes=1,
                channel_dim=-1,
                random_state=random,
            )
            for name, volume in zip(("image", "label"), volumes, strict=True):
                path = Path(folder, f"{name}_{i:03}.nii.gz")
                nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), path)
                archive.add(path, path.name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write_archive(args.target, args.count, args.size, args.seed)
