"""`load_dataset`: the one way to any data, by what is found at the path.

photos/                       folder of class folders, or with train/, val/ and test/     see `listings`
covid/                        the latter in images/, beside a classnames.txt              see `listings`
labels.csv, .tsv, .jsonl      table of path, label, split                                 see `listings`
split_zhou_EuroSAT.json       the field's split files, or a folder with one in it         see `split_files`
shots.json                    a split that `save_split` wrote                             see `saved_splits`
toys.safetensors              pixels or features                                          see below
dtd, with root="/datasets"    a dataset of the catalogue                                  see `catalogue`
pocket_animals                a dataset in the package itself                             see `calprompt.pocket`

A .safetensors file has normalised pixels, or features of the backbone:

    train_images  [n, 3, size, size]  or  train_features  [n, D]         train_labels  [n]
    val_…                                                                val_labels        (both may be missing)
    test_…                                                               test_labels

Its class names are a JSON list under "class_names" in its metadata, or in <stem>.json beside it:
{"class_names": ["daisy", "rose"], "template": "a photo of a {}, a type of flower."}; the template may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from calprompt.data import catalogue
from calprompt.data.catalogue.layouts import CLASSNAMES
from calprompt.data.classes import find_classes, read_base, read_classes, with_base
from calprompt.data.dataset import SPLITS, Dataset, Listing, Split
from calprompt.data.images import FeatureRows, ImageRows, Images
from calprompt.data.listings import TABLES, has_class_folders, list_folder, list_table
from calprompt.data.split_files import is_saved_split, list_split_file, load_split
from calprompt.errors import DataError, SettingError
from calprompt.files import read_json
from calprompt.registry import unknown
from calprompt.text import parse_problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor

EXPECTED = (
    "a folder of class folders, a table (.csv, .tsv, .jsonl), a split file (.json), a .safetensors file, or the name "
    "of a dataset in the catalogue"
)


def load_dataset(
    data: str | Path,
    *,
    root: str | Path | None = None,
    classes: str | Path | None = None,
    base: str | Path | None = None,
    upright: bool = False,
) -> Dataset:
    """Load the dataset at a path or of a name, see above. Opens no image.

    Args:
        data: A folder, a table, a split file, a .safetensors file, or the name of a dataset in the catalogue.
        root: Folder that has the datasets; for a table or a split file, what its paths are relative to.
        classes: A classes file, see `calprompt.data.classes`; one in the folder or beside the table is found by
            itself.
        base: A file with the name of a base class on every line; the others are novel.
        upright: Turn images as their EXIF tags say; public prompt-tuning code does not.

    Raises:
        DataError: if there is no data, or it cannot be used.
    """
    path, dataset = Path(data).expanduser(), None
    if path.suffix == ".safetensors" and path.is_file():
        dataset = _read_tensors(path)
    elif path.suffix.lower() == ".json" and path.is_file() and is_saved_split(read_json(path)):
        dataset = load_split(path, root)
    if dataset is None:
        dataset = list_dataset(data, root=root, classes=classes).dataset()
    elif classes is not None:
        raise DataError(f"{data} names its classes itself; a classes file goes with a folder or a table")
    if base is not None:
        file = Path(base).expanduser()
        dataset = with_base(dataset, read_base(file), file.name)
    return dataset.with_files(upright=True) if upright else dataset


def list_dataset(
    data: str | Path, *, root: str | Path | None = None, classes: str | Path | None = None, split: bool = True
) -> Listing:
    """Class names and images of anything but tensors and saved splits; opens no image.

    Without `split`, the images of a folder or table that says nothing of splits are all to train.
    """
    path = locate(data, root)
    place = None if root is None else Path(root).expanduser()
    classes_file = None if classes is None else Path(classes).expanduser()
    numbered = False
    if catalogue.is_known(str(data)) and (place is not None or not path.exists()):
        entry = catalogue.get(str(data))
        listing = entry.listing(entry.find(place))
    elif place is not None and not place.is_dir():
        problem = "is a file" if place.exists() else "is not there"
        raise SettingError(f"must be a folder, and {place} {problem}", parameter="root")
    elif path.is_dir():
        listing = _folder(path, split)
        classes_file = classes_file or find_classes(path)
        if classes_file is None and catalogue.recognise(path) is None and _is_beside_images(path):
            classes_file = path / CLASSNAMES
    elif not path.exists():
        raise DataError(f"there is no data at {path}; expected {EXPECTED}{_nearest(data)}")
    elif path.suffix.lower() in TABLES:
        listing = list_table(path, place, split=split)
        classes_file = classes_file or find_classes(path.parent)
        numbered = all(name.isdecimal() for name in listing.class_names)
    elif path.suffix.lower() == ".json":
        listing = list_split_file(path, place)
    else:
        raise DataError(f"{path} is not data; expected {EXPECTED}")
    if classes_file is not None:
        listing = read_classes(classes_file).apply(listing)
    if numbered and all(name.isdecimal() for name in listing.class_names):
        raise DataError(
            f"{path.name}: the labels are numbers; write the names of the {len(listing.class_names)} classes, in "
            "order, to classes.txt beside it"
        )
    return listing


def locate(data: str | Path, root: str | Path | None) -> Path:
    """The path that data mean: as it stands, or, if nothing is there, a folder of `root`."""
    path = Path(data).expanduser()
    if root is None or path.exists():
        return path
    inside = Path(root).expanduser() / path
    return inside if inside.is_dir() else path


def is_class_folders(path: Path) -> bool:
    """Whether a path is a folder that only its class folders describe: no dataset of the catalogue, no split file."""
    return path.is_dir() and catalogue.recognise(path) is None and not _split_files(path)


def _folder(path: Path, split: bool) -> Listing:
    """A folder of images, or one that a split file in it describes."""
    entry = catalogue.recognise(path)
    if entry is not None:
        return entry.listing(path)
    if _is_beside_images(path):
        return replace(list_folder(path / "images"), name=path.resolve().name)
    files = _split_files(path)
    if len(files) > 1:
        raise DataError(f"{path} has {files[0].name} and {files[1].name}; name the one that is meant")
    return list_split_file(files[0]) if files else list_folder(path, split=split)


def _is_beside_images(folder: Path) -> bool:
    """Whether a folder has classnames.txt beside images/train and images/test, as BAPLe's datasets have."""
    split = all(has_class_folders(folder / "images" / name) for name in ("train", "test"))
    return split and (folder / CLASSNAMES).is_file()


def _split_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("split_*.json"))


def _nearest(data: str | Path) -> str:
    name = str(data)
    near = catalogue.nearest(name) if Path(name).name == name and not Path(name).suffix else None
    return f" (did you mean {near!r}?)" if near else ""


KINDS: dict[str, Callable[[Tensor], Images]] = {"images": ImageRows, "features": FeatureRows}
_SHAPES = {"images": "[n, 3, height, width]", "features": "[n, dimensions]"}


def _read_tensors(path: Path) -> Dataset:
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
    class_names, template = _tensor_names(path, metadata)
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
            f"{path.name}: {split}_{kind} is {_dtype_name(rows.dtype)}, expected floating-point numbers"
            + (" (pixels normalised as the backbone wants them)" if kind == "images" else "")
        )
    if not bool(torch.isfinite(rows).all()):
        raise DataError(f"{path.name}: {split}_{kind} has values that are not finite")
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise DataError(
            f"{path.name}: {split}_labels is {_dtype_name(labels.dtype)} {list(labels.shape)}, "
            "expected whole numbers [n]"
        )
    if len(labels) != len(rows):
        raise DataError(f"{path.name}: {split} has {len(rows)} {kind} and {len(labels)} labels")
    return Split(KINDS[kind](rows), tuple(labels.tolist()))


def _tensor_names(path: Path, metadata: dict[str, str]) -> tuple[tuple[str, ...], str | None]:
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


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
