"""Labelled images: where they come from, and which of them a run sees. Reading and splitting them needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.data.dataset import Dataset, Split
    from calprompt.data.digests import image_digests
    from calprompt.data.folders import read_folder
    from calprompt.data.images import FeatureRows, ImageFiles, ImageRows, Images
    from calprompt.data.inputs import GivenImages
    from calprompt.data.labelled import LabelledImages, labelled_images
    from calprompt.data.load import load_dataset
    from calprompt.data.memory import ImageMemory
    from calprompt.data.saved_splits import load_split, save_split
    from calprompt.data.split_files import read_split_file, write_split_file
    from calprompt.data.splits import Part, all_classes, base_novel, draw, few_shot
    from calprompt.data.tensors import read_tensors
    from calprompt.data.unreadable import UnreadableImages, drop_images, find_unreadable, unreadable_error

__all__ = [
    "Dataset",
    "FeatureRows",
    "GivenImages",
    "ImageFiles",
    "ImageMemory",
    "ImageRows",
    "Images",
    "LabelledImages",
    "Part",
    "Split",
    "UnreadableImages",
    "all_classes",
    "base_novel",
    "draw",
    "drop_images",
    "few_shot",
    "find_unreadable",
    "image_digests",
    "labelled_images",
    "load_dataset",
    "load_split",
    "read_folder",
    "read_split_file",
    "read_tensors",
    "save_split",
    "unreadable_error",
    "write_split_file",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "dataset": ("Dataset", "Split"),
        "digests": ("image_digests",),
        "folders": ("read_folder",),
        "images": ("FeatureRows", "ImageFiles", "ImageRows", "Images"),
        "inputs": ("GivenImages",),
        "labelled": ("LabelledImages", "labelled_images"),
        "load": ("load_dataset",),
        "memory": ("ImageMemory",),
        "saved_splits": ("load_split", "save_split"),
        "split_files": ("read_split_file", "write_split_file"),
        "splits": ("Part", "all_classes", "base_novel", "draw", "few_shot"),
        "tensors": ("read_tensors",),
        "unreadable": ("UnreadableImages", "drop_images", "find_unreadable", "unreadable_error"),
    },
)
