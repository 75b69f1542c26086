"""MONAI's U-Net finds spheres in NIfTI volumes: random crops to train, a sliding window to evaluate."""

import sys

import torch

from clustertrain import Task

try:
    import nibabel
    from monai.inferers import sliding_window_inference
    from monai.losses import DiceLoss
    from monai.metrics import compute_dice
    from monai.networks.nets import UNet
    from monai.transforms import (
        Compose,
        EnsureChannelFirstd,
        EnsureTyped,
        LoadImaged,
        RandCropByPosNegLabeld,
        RandRotate90d,
        ScaleIntensityd,
    )
except ImportError as error:
    raise ImportError(f"{error}. Install it: pip install 'monai>=1.5,<2' 'nibabel>=5.3,<6'") from error

BOTH = ("image", "label")
HALVED = 16  # the network halves the edges four times; of one voxel there is no normalization


class Spheres(Task):
    """A training sample is a list of crops, an evaluation sample one whole volume."""

    def __init__(self, lr: float, crop: int, crops_per_volume: int, eval_volumes: int, skip_unreadable: bool):
        if crop % HALVED or crop < 2 * HALVED:
            raise ValueError(
                f"crop is {crop}; the network needs a multiple of {HALVED}, at least {2 * HALVED}."
            )
        self.lr, self.crop, self.crops_per_volume = lr, crop, crops_per_volume
        self.eval_volumes, self.skip_unreadable = eval_volumes, skip_unreadable
        self.dice_loss = DiceLoss(sigmoid=True)
        self.pairs = None

    def model(self):
        return UNet(
            spatial_dims=3,
            in_channels=1,
            out_channels=1,
            channels=(16, 32, 64, 128, 256),
            strides=(2, 2, 2, 2),
            num_res_units=2,
        )

    def train_data(self, data):
        crops = [
            RandCropByPosNegLabeld(
                keys=BOTH,
                label_key="label",
                spatial_size=[self.crop] * 3,
                pos=1,
                neg=1,
                num_samples=self.crops_per_volume,
            ),
            RandRotate90d(keys=BOTH, prob=0.5, spatial_axes=(0, 2)),
        ]
        return Volumes(self.find_pairs(data)[: -self.eval_volumes], crops)

    def eval_data(self, data):
        return Volumes(self.find_pairs(data)[-self.eval_volumes :], [])

    def find_pairs(self, data):
        """The paths of the images with their labels, in the order of their names; found once."""
        if self.pairs is not None:
            return self.pairs
        images = sorted(data["volumes"].glob("image_*.nii.gz"))
        pairs = [{"image": path, "label": path.with_name(f"label_{path.name[6:]}")} for path in images]
        if self.skip_unreadable:
            pairs = [pair for pair in pairs if opens(pair)]
        if len(pairs) <= self.eval_volumes:
            raise ValueError(
                f"{data['volumes']} has {len(pairs)} pairs of image_*.nii.gz and label_*.nii.gz, of which "
                f"args.eval_volumes: {self.eval_volumes} are for evaluation: none is left for training."
            )
        self.pairs = pairs
        return pairs

    def collate(self, samples):
        """Images and labels, each (crops of all volumes, 1, d, h, w)."""
        crops = [crop for sample in samples for crop in sample]
        return tuple(torch.stack([crop[key] for crop in crops]) for key in BOTH)

    def loss(self, model, batch):
        images, labels = batch
        return self.dice_loss(model(images), labels)

    def eval_step(self, model, batch):
        """The outputs are the Dice of each volume: clustertrain gathers the outputs of all ranks."""
        images, labels = batch
        scores = sliding_window_inference(images, [self.crop] * 3, sw_batch_size=4, predictor=model)
        return self.dice_loss(scores, labels), compute_dice((scores > 0).float(), labels), None

    def metrics(self):
        return {"mean_dice": mean_dice}

    def optimizer(self, model):
        return torch.optim.Adam(model.parameters(), lr=self.lr)


def mean_dice(dice_of_volumes, targets):
    """The mean over the volumes of all ranks; the Dice of an empty volume is NaN, and does not count."""
    return dice_of_volumes.nanmean()


class Volumes:
    """Lists of one or several {"image", "label"}, tensors (1, d, h, w), by the number of the volume."""

    def __init__(self, pairs, crops):
        self.pairs = pairs
        self.load = Compose(
            [LoadImaged(keys=BOTH), EnsureChannelFirstd(keys=BOTH), ScaleIntensityd(keys="image")]
        )
        self.crop = Compose([*crops, EnsureTyped(keys=BOTH, track_meta=False)])

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        try:
            volume = self.load(self.pairs[i])
        except RuntimeError as error:  # MONAI's, whatever the reason is
            raise unreadable(self.pairs[i], error) from error
        # MONAI's transforms have their own generators. Seeded from torch's, which clustertrain seeds for each
        # batch, a resumed run has the same crops.
        self.crop.set_random_state(seed=int(torch.randint(2**31, ())))
        crops = self.crop(volume)
        return crops if isinstance(crops, list) else [crops]


def unreadable(pair, error):
    """The error of a volume that does not open, with the path and the reason."""
    for path in pair.values():
        try:
            read(path)
        except Exception as reason:  # noqa: BLE001  nibabel raises anything for a damaged file
            return ValueError(
                f"{path} does not open as NIfTI: {reason}. "
                "Make the archive again, or leave such volumes out: --set args.skip_unreadable=true"
            )
    return ValueError(f"{pair['image']}: {error.__cause__ or error}")


def opens(pair):
    """Whether both files open; reads them completely, because a file that was cut has a valid header."""
    for path in pair.values():
        try:
            read(path)
        except Exception as reason:  # noqa: BLE001  as above
            print(f"left out: {path} does not open as NIfTI: {reason}", file=sys.stderr)
            return False
    return True


def read(path):
    return nibabel.load(path).get_fdata()
