"""Cityscapes: images and fine labels in the folders of the data set, with 19 classes for training."""

import numpy as np
import torch
from torch.utils.data import Dataset

try:
    from PIL import Image
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("cityscapes.py reads PNG files with Pillow: pip install pillow") from error

CLASSES = (
    *("road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation"),
    *("terrain", "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle"),
)
# The label of each class in a file *_labelIds.png. Source: labels.py of github.com/mcordts/cityscapesScripts.
LABEL_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
MOST_LABEL_ID = 33  # the others up to here, such as 0, unlabeled, are not for training
IGNORED = 255

_CLASS_OF = np.full(256, IGNORED, np.uint8)
_CLASS_OF[list(LABEL_IDS)] = np.arange(len(LABEL_IDS))


class Cityscapes(Dataset):
    """The images of one part, `train` or `val`, uint8 (3, height, width), and classes, int64 (height, width).

    With a `crop` (height, width), a random part of that size is returned, flipped in every second sample.
    """

    def __init__(self, root, part, crop=None):
        self.crop = crop
        images = sorted((root / "leftImg8bit" / part).glob("*/*_leftImg8bit.png"))
        if not images:
            raise FileNotFoundError(
                f"{root / 'leftImg8bit' / part} has no CITY/*_leftImg8bit.png: name the folder that has "
                "leftImg8bit and gtFine under data.cityscapes.uri."
            )
        self.files = [(image, _labels_of(root, image)) for image in images]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image_path, labels_path = self.files[i]
        image = pixels_of(image_path, "RGB")
        classes = classes_of(pixels_of(labels_path, "L"), labels_path)
        if image.shape[:2] != classes.shape:
            raise ValueError(
                f"{labels_path} has height and width {classes.shape}, its image {image.shape[:2]}. "
                "The two files do not belong together."
            )
        image, classes = torch.from_numpy(image).permute(2, 0, 1), torch.from_numpy(classes)
        return (image, classes) if self.crop is None else _cropped(image, classes, self.crop, image_path)


def pixels_of(path, mode):
    """uint8, (height, width, 3) for the mode RGB, (height, width) for L."""
    try:
        with Image.open(path) as image:
            if mode == "L" and image.mode not in ("L", "P"):
                raise ValueError(f"the mode is {image.mode}, but labels have one byte per pixel")
            return np.array(image if mode == "L" else image.convert(mode))
    except (OSError, SyntaxError, ValueError) as error:  # a PNG that is cut is a SyntaxError at some places
        raise ValueError(f"{path} cannot be read: {error}. Fetch it again.") from error


def classes_of(label_ids, path):
    """The classes 0 to 18 of label ids, or IGNORED; int64, of the same shape.

    Raises:
        ValueError: a label is out of range.
    """
    wrong = np.argwhere(label_ids > MOST_LABEL_ID)
    if len(wrong):
        row, column = wrong[0]
        raise ValueError(
            f"{path}: row {row}, column {column} has the label {label_ids[row, column]}; the labels are 0 to "
            f"{MOST_LABEL_ID}. Pixels with this mistake: {len(wrong)} of {label_ids.size}. "
            "Name files *_gtFine_labelIds.png, not labelTrainIds or color."
        )
    return _CLASS_OF[label_ids].astype(np.int64)


def _labels_of(root, image):
    name = image.name.removesuffix("leftImg8bit.png") + "gtFine_labelIds.png"
    path = root / "gtFine" / image.parent.parent.name / image.parent.name / name
    if not path.is_file():
        raise FileNotFoundError(f"{image} has no labels: {path} is not there.")
    return path


def _cropped(image, classes, crop, path):
    (height, width), (full_height, full_width) = crop, classes.shape
    if height > full_height or width > full_width:
        raise ValueError(
            f"{path} has height and width {(full_height, full_width)}, less than the crop {tuple(crop)}. "
            "Set a smaller args.crop."
        )
    top = int(torch.randint(full_height - height + 1, ()))
    left = int(torch.randint(full_width - width + 1, ()))
    part = (slice(top, top + height), slice(left, left + width))
    image, classes = image[:, *part], classes[part]
    return (image.flip(2), classes.flip(1)) if torch.rand(()) < 0.5 else (image, classes)
