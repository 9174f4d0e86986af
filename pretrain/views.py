"""Training pictures: drawings posed, tinted and blurred on random backgrounds, a batch at a time.

Ranges are about as wide as those of the datasets or wider, and some coloured drawings become grey or line drawings, so
that a style never seen is not a surprise.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.pool import MEDIA

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_LUMA = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)


def views(pictures: Tensor, media: Tensor, photos: Tensor, dice: torch.Generator) -> Tensor:
    """[n, 48, 48, 4] uint8 and their media -> normalised pixels [n, 3, 48, 48]; photos serve as backgrounds."""
    n = len(pictures)
    inked = pictures.permute(0, 3, 1, 2).float() / 255
    photo = media == MEDIA.index("photo")
    inked = _restyle(inked, media, dice)
    alpha = inked[:, 3:]
    posed = _pose(torch.cat([inked[:, :3] * alpha, alpha], 1), photo, dice)
    ground = _background(n, photos, dice)
    light = (media == MEDIA.index("ink")) | (media == MEDIA.index("sketch"))
    pale = _chance(n, 0.7, dice) & light.view(-1, 1, 1, 1)
    ground = torch.where(pale, 1 - 0.25 * ground, ground)
    white = _chance(n, 0.15, dice)
    ground = torch.where(white, torch.ones(()), ground)
    colours = posed[:, :3] + ground * (1 - posed[:, 3:])
    colours = colours * (1 + 0.25 * _uniform((n, 3, 1, 1), dice)) + 0.08 * _uniform((n, 1, 1, 1), dice)
    grey = _chance(n, 0.1, dice)
    colours = torch.where(grey, (colours * _LUMA).sum(1, keepdim=True).expand_as(colours), colours)
    blurred = F.avg_pool2d(F.pad(colours, (1, 1, 1, 1), mode="replicate"), 3, 1)
    colours = torch.where(_chance(n, 0.25, dice), blurred, colours)
    noise = 0.09 * torch.rand((n, 1, 1, 1), generator=dice) * _uniform((n, 1, *colours.shape[2:]), dice)
    colours = (colours + noise).clamp(0, 1)
    return (colours - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)


def _restyle(inked: Tensor, media: Tensor, dice: torch.Generator) -> Tensor:
    """Black drawings take a colour; some coloured ones become lines."""
    n = len(inked)
    black = ((media == MEDIA.index("ink")) | (media == MEDIA.index("sketch"))).view(-1, 1, 1, 1)
    dark = 0.4 * torch.rand((n, 3, 1, 1), generator=dice)
    colour = torch.where(_chance(n, 0.6, dice), torch.zeros(()), torch.where(_chance(n, 0.7, dice), dark, 2.5 * dark))
    coloured = torch.cat([colour.expand(-1, -1, *inked.shape[2:]), inked[:, 3:]], 1)
    lined = torch.nonzero((media == MEDIA.index("drawing")) & _chance(n, 0.15, dice).view(-1)).view(-1)
    restyled = torch.where(black, coloured, inked)
    restyled[lined, :3], restyled[lined, 3:] = 0.0, _edges(inked[lined])
    return restyled


def _edges(inked: Tensor) -> Tensor:
    """Where a drawing on white changes fastest, [n, 1, 48, 48] from 0 to 1."""
    luma = ((inked[:, :3] * inked[:, 3:] + 1 - inked[:, 3:]) * _LUMA).sum(1, keepdim=True)
    padded = F.pad(torch.cat([luma, inked[:, 3:]], 1), (1, 1, 1, 1), mode="replicate")
    across = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
    down = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    return ((across**2 + down**2).sum(1, keepdim=True).sqrt() * 1.5).clamp(0, 1)


def _pose(inked: Tensor, photo: Tensor, dice: torch.Generator) -> Tensor:
    """Turned, scaled, moved and sometimes mirrored; photographs are only enlarged, so that no edge shows."""
    n = len(inked)
    angle = 0.25 * torch.randn(n, generator=dice).clamp(-2, 2)
    size = 0.55 + 0.5 * torch.rand(n, generator=dice)
    across, down = (0.3 * (torch.rand(2, n, generator=dice) - 0.5)).unbind(0)
    size, angle = torch.where(photo, 1.05 + 0.4 * (size - 0.55), size), torch.where(photo, 0.2 * angle, angle)
    across, down = torch.where(photo, 0.2 * across, across), torch.where(photo, 0.2 * down, down)
    mirror = torch.where(torch.rand(n, generator=dice) < torch.where(photo, 0.5, 0.2), -1.0, 1.0)
    stretch = 1 + 0.1 * (2 * torch.rand(n, generator=dice) - 1)
    cos, sin = angle.cos() / size, angle.sin() / size
    rows = torch.stack([mirror * cos * stretch, -sin, across, sin * mirror, cos / stretch, down], 1).view(n, 2, 3)
    grid = F.affine_grid(rows, list(inked.shape), align_corners=False)
    return F.grid_sample(inked, grid, padding_mode="zeros", align_corners=False)


def _background(n: int, photos: Tensor, dice: torch.Generator) -> Tensor:
    """Smooth colours, blots of another size on them, or a photograph; [n, 3, 48, 48]."""
    size = photos.shape[1]
    base = F.interpolate(torch.rand((n, 3, 2, 2), generator=dice), size=size, mode="bilinear")
    cells = int(torch.randint(3, 13, (1,), generator=dice))
    blots = F.interpolate(torch.rand((n, 3, cells, cells), generator=dice), size=size, mode="bilinear")
    strength = torch.rand((n, 1, 1, 1), generator=dice) ** 2
    ground = base * (1 - strength) + blots * strength
    plain = torch.rand((n, 3, 1, 1), generator=dice).expand_as(ground)
    ground = torch.where(_chance(n, 0.25, dice), plain, ground)
    where = torch.nonzero(_chance(n, 0.2, dice).view(-1)).view(-1)
    drawn = photos[torch.randint(len(photos), (len(where),), generator=dice)]
    ground[where] = drawn.permute(0, 3, 1, 2)[:, :3].float() / 255
    return ground


def _chance(n: int, share: float, dice: torch.Generator) -> Tensor:
    return (torch.rand(n, generator=dice) < share).view(-1, 1, 1, 1)


def _uniform(shape: tuple[int, ...], dice: torch.Generator) -> Tensor:
    return 2 * torch.rand(shape, generator=dice) - 1
