"""Labelled images: where they come from, which of them a run sees, and what towers and tuners take of them.

Names are looked up when they are first used: the catalogue and its commands need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calprompt.data.bad_images import bad_images_error, find_bad, without
    from calprompt.data.dataset import Dataset, Split
    from calprompt.data.features import FeatureBank, PixelBank, Progress, Unreadable, frozen_features
    from calprompt.data.folders import read_folder
    from calprompt.data.images import FeatureRows, ImageFiles, ImageRows, Images
    from calprompt.data.load import load_dataset
    from calprompt.data.saved_splits import load_split, save_split
    from calprompt.data.split_files import read_split_file, write_split_file
    from calprompt.data.splits import Part, all_classes, base_novel, draw, few_shot
    from calprompt.data.tensors import read_tensors

_FILES = {
    "bad_images": ("bad_images_error", "find_bad", "without"),
    "dataset": ("Dataset", "Split"),
    "features": ("FeatureBank", "PixelBank", "Progress", "Unreadable", "frozen_features"),
    "folders": ("read_folder",),
    "images": ("FeatureRows", "ImageFiles", "ImageRows", "Images"),
    "load": ("load_dataset",),
    "saved_splits": ("load_split", "save_split"),
    "split_files": ("read_split_file", "write_split_file"),
    "splits": ("Part", "all_classes", "base_novel", "draw", "few_shot"),
    "tensors": ("read_tensors",),
}
_HOME = {name: file for file, names in _FILES.items() for name in names}

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
    "bad_images_error",
    "base_novel",
    "draw",
    "few_shot",
    "find_bad",
    "frozen_features",
    "load_dataset",
    "load_split",
    "read_folder",
    "read_split_file",
    "read_tensors",
    "save_split",
    "without",
    "write_split_file",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
