"""Writes a folder in the layout of Cityscapes with generated street scenes, to measure and to test.

    python make_cityscapes.py cityscapes
    python make_cityscapes.py cityscapes --train 16 --val 6 --height 64 --width 128

Each class has a color, with noise. A network can learn the classes that occur here, but its mIoU has nothing
to do with that on Cityscapes.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

UNLABELED, EGO_VEHICLE, ROAD, SIDEWALK, BUILDING, POLE, VEGETATION, SKY, PERSON, CAR = (
    *(0, 1, 7, 8, 11, 17, 21, 23, 24, 26),
)
COLORS = {
    UNLABELED: (0, 0, 0),
    EGO_VEHICLE: (20, 20, 60),
    ROAD: (90, 80, 90),
    SIDEWALK: (190, 150, 190),
    BUILDING: (120, 70, 50),
    POLE: (200, 200, 120),
    VEGETATION: (40, 120, 40),
    SKY: (120, 180, 230),
    PERSON: (220, 40, 60),
    CAR: (30, 30, 170),
}
CITIES = {"train": ("aachen", "bochum"), "val": ("frankfurt",)}


def write_folder(folder, counts, height, width):
    """`counts`: images by part, `train` and `val`."""
    generator = np.random.default_rng(19)
    for part, count in counts.items():
        for number in range(count):
            city = CITIES[part][number % len(CITIES[part])]
            labels = scene(height, width, generator)
            name = f"{city}_{number:06}_000019"
            for kind, suffix, pixels in (
                ("leftImg8bit", "leftImg8bit", colored(labels, generator)),
                ("gtFine", "gtFine_labelIds", labels),
            ):
                path = folder / kind / part / city / f"{name}_{suffix}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)


def scene(height, width, generator):
    """Label ids, uint8 (height, width): a street between buildings, with cars and persons on it."""
    labels = np.full((height, width), SKY, np.uint8)
    horizon = height // 2
    for left in range(0, width, width // 8):  # houses and trees of different heights
        top = generator.integers(height // 8, horizon)
        labels[top:horizon, left : left + width // 8] = generator.choice([BUILDING, VEGETATION])
    labels[horizon:] = ROAD
    labels[horizon : horizon + height // 8] = SIDEWALK
    for kind, wide, high, count in ((CAR, 6, 6, 3), (PERSON, 20, 5, 3), (POLE, 40, 3, 2)):
        for _ in range(count):
            bottom = horizon + generator.integers(height // 16, height // 3)
            left = generator.integers(0, width - width // wide)
            labels[bottom - height // high : bottom, left : left + max(2, width // wide)] = kind
    labels[-height // 16 :] = EGO_VEHICLE
    labels[:, :2] = UNLABELED
    return labels


def colored(labels, generator):
    """An image of the labels, uint8 (height, width, 3)."""
    colors = np.zeros((256, 3))
    for label, color in COLORS.items():
        colors[label] = color
    return (colors[labels] + generator.normal(0, 20, (*labels.shape, 3))).clip(0, 255).astype(np.uint8)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=64, help="images for training")
    parser.add_argument("--val", type=int, default=11, help="images for evaluation")
    parser.add_argument("--height", type=int, default=128)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    write_folder(args.folder, {"train": args.train, "val": args.val}, args.height, args.width)


if __name__ == "__main__":
    main()
