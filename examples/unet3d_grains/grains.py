"""Volumes of a polycrystal made from a seed: grains of a Voronoi tessellation, and the walls between them."""

import torch
from torch.utils.data import TensorDataset


def volume(size, grains, generator):
    """A noisy image, float32 (1, size, size, size), and its boundaries: 0 or 1, of the same shape.

    A grain is the set of voxels that are nearest to its seed, and has a grey value of its own. A voxel is a
    boundary if the next one along an axis belongs to another grain; boundaries are darker than the grains.
    """
    edge = torch.arange(size, dtype=torch.float32)
    voxels = torch.cartesian_prod(edge, edge, edge)  # (size³, 3)
    seeds = torch.rand(grains, 3, generator=generator) * size
    grain = torch.cdist(voxels, seeds).argmin(dim=1).view(size, size, size)
    boundary = torch.zeros(size, size, size)
    for axis in range(3):
        differs = grain.narrow(axis, 0, size - 1) != grain.narrow(axis, 1, size - 1)
        boundary.narrow(axis, 0, size - 1)[differs] = 1
    grey = torch.rand(grains, generator=generator)[grain]
    noise = 0.15 * torch.randn(size, size, size, generator=generator)
    return (0.6 + 0.4 * grey - 0.5 * boundary + noise)[None], boundary[None]


def volumes(count, size, seed, voxels_per_grain=1600):
    """A data set of `count` (image, boundaries); the same on every rank, because the seed is the same."""
    generator = torch.Generator().manual_seed(seed)
    grains = max(2, size**3 // voxels_per_grain)
    images, boundaries = zip(*(volume(size, grains, generator) for _ in range(count)), strict=True)
    return TensorDataset(torch.stack(images), torch.stack(boundaries))
