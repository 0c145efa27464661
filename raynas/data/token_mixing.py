"""Mixing of images that keeps the labels of their patches true (ViT-ResNAS, "token labeling").

timm's Mixup does not fit, because its CutMix boxes cut patches in two. Random numbers come from torch's and numpy's
global streams, as timm's do, which training seeds and saves in checkpoints.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raynas.data.token_labels import TokenLabelsConfig
from raynas.errors import ConfigError

Grid = tuple[int, int]
"""Rows and columns of patches."""


def mix_tokens(images: Tensor, targets: Tensor, grid: Grid, config: TokenLabelsConfig) -> tuple[Tensor, Tensor]:
    """Return mixed images and targets [batch, 1 + patches, classes]: the image's, then its patches' in row-major order.

    Args:
        images: [batch, channels, height, width].
        targets: [batch, classes], each row a distribution; or, for `mixing: none`, already mixed with the images.
        grid: rows and columns of patches.

    Raises:
        ConfigError: the grid does not divide the images.
    """
    if config.mixing == "none":
        return images, targets[:, None].expand(-1, 1 + grid[0] * grid[1], -1)
    if config.mixing == "switch":
        if np.random.rand() < config.switch_prob:
            return paste_patches(images, targets, _permutation(images), _random_patches(grid, config.cutmix))
        return blend(images, targets, _permutation(images), np.random.beta(config.mixup, config.mixup), grid)
    half = len(images) // 2
    parts = []
    if half:
        partner = _permutation(images[:half])
        parts.append(paste_patches(images[:half], targets[:half], partner, _released_box(grid, config.cutmix)))
    partner = _permutation(images[half:])
    share = np.random.beta(config.mixup, config.mixup)
    parts.append(blend(images[half:], targets[half:], partner, share, grid))
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def paste_patches(images: Tensor, targets: Tensor, partner: Tensor, pasted: Tensor) -> tuple[Tensor, Tensor]:
    """Apply CutMix by whole patches: some patches of every image, and their labels, come from its partner.

    The image's target is mixed by the share of patches.

    Args:
        partner: [batch], each image's partner.
        pasted: [rows, columns] bool, the same for all images.

    Raises:
        ConfigError: the grid does not divide the images.
    """
    rows, columns = pasted.shape
    height, width = images.shape[2:]
    if height % rows or width % columns:
        raise ConfigError(
            f"token_labels: a grid of {rows} x {columns} patches does not divide {height} x {width} pixels"
        )
    pixels = pasted.repeat_interleave(height // rows, 0).repeat_interleave(width // columns, 1).to(images.device)
    cells = pasted.flatten().to(images.device)
    kept = 1 - pasted.double().mean().item()
    patches = torch.where(cells[:, None], targets[partner, None], targets[:, None])
    image = kept * targets + (1 - kept) * targets[partner]
    return torch.where(pixels, images[partner], images), torch.cat([image[:, None], patches], dim=1)


def blend(images: Tensor, targets: Tensor, partner: Tensor, share: float, grid: Grid) -> tuple[Tensor, Tensor]:
    """Apply Mixup: images and all their targets keep `share` of themselves, and get the rest from their partners."""
    mixed = share * targets + (1 - share) * targets[partner]
    spread = mixed[:, None].expand(-1, 1 + grid[0] * grid[1], -1)
    return share * images + (1 - share) * images[partner], spread


def _permutation(images: Tensor) -> Tensor:
    return torch.randperm(len(images)).to(images.device)


def _random_patches(grid: Grid, alpha: float) -> Tensor:
    """Draw a random set of patches, a share from Beta(alpha, alpha): bool [rows, columns]."""
    count = grid[0] * grid[1]
    pasted = torch.zeros(count, dtype=torch.bool)
    pasted[torch.randperm(count)[: round(count * np.random.beta(alpha, alpha))]] = True
    return pasted.view(grid)


def _released_box(grid: Grid, alpha: float) -> Tensor:
    """Draw a box of patches like the released code: bool [rows, columns].

    Its upper bounds are exclusive, so that the last row is never pasted, and a small box may be empty.
    """
    rows, columns = grid
    area = int(rows * columns * np.random.beta(alpha, alpha))
    tallest = max(1, min(rows, area) - 1)
    height = np.random.randint(1, tallest) if tallest > 1 else 1
    width = area // height
    if width > columns:
        width, height = columns, area // columns
    top = _released_place(rows - height)
    left = _released_place(columns - width)
    pasted = torch.zeros(grid, dtype=torch.bool)
    pasted[top : top + height, left : left + width] = True
    return pasted


def _released_place(room: int) -> int:
    return int(np.random.randint(0, room, size=2)[1]) if room > 0 else 0  # it draws two and uses the second
