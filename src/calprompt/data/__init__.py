"""Labelled images: where they come from, which of them a run sees, and what towers and tuners take of them."""

from __future__ import annotations

from pathlib import Path

from calprompt.data.dataset import Dataset, Split
from calprompt.data.features import FeatureBank, PixelBank, Progress, Unreadable, frozen_features
from calprompt.data.folders import read_folder
from calprompt.data.images import FeatureRows, ImageFiles, ImageRows, Images
from calprompt.data.splits import Part, all_classes, base_novel, draw, few_shot
from calprompt.data.tensors import read_tensors
from calprompt.errors import CalpromptError

__all__ = [
    "Dataset",
    "FeatureBank",
    "FeatureRows",
    "ImageFiles",
    "ImageRows",
    "Images",
    "Part",
    "PixelBank",
    "Progress",
    "Split",
    "Unreadable",
    "all_classes",
    "base_novel",
    "draw",
    "few_shot",
    "frozen_features",
    "load_dataset",
    "read_folder",
    "read_tensors",
]


def load_dataset(path: str | Path) -> Dataset:
    """The dataset at a path: a folder of images (see `folders`) or a .safetensors file (see `tensors`)."""
    path = Path(path).expanduser()
    if path.is_dir():
        return read_folder(path)
    if not path.exists():
        raise CalpromptError(f"there is no data at {path}; expected a folder of class folders or a .safetensors file")
    if path.suffix != ".safetensors":
        raise CalpromptError(f"{path} is not data; expected a folder of class folders or a .safetensors file")
    return read_tensors(path)
