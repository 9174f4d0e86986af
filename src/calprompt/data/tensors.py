"""Datasets from one .safetensors file: images as normalised pixels, or as features of the backbone.

train_images  [n, 3, size, size]  or  train_features  [n, D]         train_labels  [n]
val_…                                                                val_labels        (both may be missing)
test_…                                                               test_labels

Class names are a JSON list under "class_names" in the file's metadata, or in <stem>.json beside the file:
{"class_names": ["daisy", "rose"], "template": "a photo of a {}, a type of flower."}; the template may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from calprompt.data.dataset import SPLITS, Dataset, Split
from calprompt.data.images import FeatureRows, ImageRows, Images
from calprompt.errors import DataError
from calprompt.files import read_json
from calprompt.registry import unknown
from calprompt.text import parse_problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor

KINDS: dict[str, Callable[[Tensor], Images]] = {"images": ImageRows, "features": FeatureRows}
_SHAPES = {"images": "[n, 3, height, width]", "features": "[n, dimensions]"}


def read_tensors(path: Path) -> Dataset:
    """The dataset in a .safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a dictionary)
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} is not a readable safetensors file: {error}") from error
    known = [f"{split}_{what}" for split in SPLITS for what in (*KINDS, "labels")]
    for name in tensors:
        if name not in known:
            raise unknown(f"tensor in {path.name}", name, known)
    class_names, template = _names(path, metadata)
    kind = _kind(path, tensors)
    train, val, test = (_split(path, tensors, split, kind) for split in SPLITS)
    return Dataset(path.stem, class_names, train, val, test, template=template)


def _kind(path: Path, tensors: dict[str, Tensor]) -> str:
    found = sorted({name.split("_")[1] for name in tensors} & set(KINDS))
    if len(found) != 1:
        raise DataError(
            f"{path.name} has {'both images and features' if found else 'neither images nor features'}; expected "
            "train_images and test_images, or train_features and test_features"
        )
    return found[0]


def _split(path: Path, tensors: dict[str, Tensor], split: str, kind: str) -> Split:
    import torch

    rows, labels = tensors.get(f"{split}_{kind}"), tensors.get(f"{split}_labels")
    if rows is None and labels is None and split == "val":
        sample = tensors[f"train_{kind}"]  # the shape of a row, for a split of none
        rows, labels = sample[:0], torch.zeros(0, dtype=torch.long)
    if rows is None or labels is None:
        raise DataError(f"{path.name} has no {split}_{kind if rows is None else 'labels'}")
    if rows.ndim != (4 if kind == "images" else 2) or (kind == "images" and rows.shape[1] != 3):
        raise DataError(f"{path.name}: {split}_{kind} is {list(rows.shape)}, expected {_SHAPES[kind]}")
    if not rows.is_floating_point():
        raise DataError(
            f"{path.name}: {split}_{kind} is {_name(rows.dtype)}, expected floating-point numbers"
            + (" (pixels normalised as the backbone wants them)" if kind == "images" else "")
        )
    if not bool(torch.isfinite(rows).all()):
        raise DataError(f"{path.name}: {split}_{kind} has values that are not finite")
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise DataError(
            f"{path.name}: {split}_labels is {_name(labels.dtype)} {list(labels.shape)}, expected whole numbers [n]"
        )
    if len(labels) != len(rows):
        raise DataError(f"{path.name}: {split} has {len(rows)} {kind} and {len(labels)} labels")
    return Split(KINDS[kind](rows), tuple(labels.tolist()))


def _names(path: Path, metadata: dict[str, str]) -> tuple[tuple[str, ...], str | None]:
    sidecar = path.with_suffix(".json")
    if "class_names" in metadata:
        where = f"the metadata of {path.name}"
        try:
            contents: Any = {**metadata, "class_names": json.loads(metadata["class_names"])}
        except (ValueError, RecursionError) as error:
            raise DataError(f"class_names in {where} is not a JSON list: {parse_problem(error)}") from error
    elif sidecar.is_file():
        where, contents = sidecar.name, read_json(sidecar)
    else:
        raise DataError(
            f"{path.name} has no class names: put a JSON list under 'class_names' in its metadata, or write "
            f'{{"class_names": ["daisy", "rose"]}} to {sidecar.name} beside it'
        )
    names = contents.get("class_names") if isinstance(contents, dict) else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise DataError(f"class_names in {where} must be a list of names")
    template = contents.get("template")
    if template is not None and not isinstance(template, str):
        raise DataError(f"template in {where} must be a sentence, got {template!r}")
    return tuple(names), template


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
