"""Photographs that pretraining never sees, to choose settings on: Tux Paint's stamps, cut out, with a caption each.

They are under the GPL, so none is trained on and none is in the package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pretrain.photo.tower import SIZE

NATURE = ("animals", "food", "plants")
GROUPS = (*NATURE, "clothes", "hobbies", "household", "sports", "town", "vehicles")
TEMPLATE = "a photo of a {}."
_FEWEST = 8  # classes of a group


@dataclass(frozen=True)
class Stamps:
    """Photographs of one group, by name."""

    group: str
    class_names: list[str]
    labels: np.ndarray
    pixels: Tensor


def read_stamps(folder: Path) -> list[Stamps]:
    """Groups of photographs on white, [n, 3, 160, 160] from 0 to 1; a class is a caption of at most three words."""
    home, groups = folder / "usr/share/tuxpaint/stamps", []
    for group in GROUPS:
        found = []
        for path in sorted((home / group).rglob("*.txt")):
            name = _name(path.read_text("utf-8", "replace").splitlines()[0])
            drawn = {"cartoon", "flags"} & set(path.parts)
            if name and not drawn and path.with_suffix(".png").is_file():
                found.append((name, _on_white(path.with_suffix(".png"))))
        names = sorted({name for name, _ in found})
        if len(names) >= _FEWEST:
            labels = np.array([names.index(name) for name, _ in found])
            groups.append(Stamps(group, names, labels, torch.stack([pixels for _, pixels in found])))
    return groups


def _name(caption: str) -> str:
    name = re.sub('[“”"]', "", caption).strip().rstrip(".!").lower()
    name = re.sub("^(a|an|the|some|two) ", "", name)
    return name if len(name.split()) <= 3 else ""


def _on_white(path: Path) -> Tensor:
    image = Image.open(path).convert("RGBA")
    side = max(image.size)
    square = Image.new("RGBA", (side, side), "white")
    square.alpha_composite(image, ((side - image.width) // 2, (side - image.height) // 2))
    pixels = np.array(square.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC))
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
