"""Datasets from folders of images; a class is a folder, its name the class name, and labels follow the sorted names.

    flowers/            split here: of each class 50 % to train, 20 % to validate, 30 % to test
      daisy/1.jpg …
      rose/1.jpg …

    flowers/            split already; val/ may be missing
      train/daisy/… train/rose/…
      val/…  test/…

Hidden files and files that are no images (by their suffix) are left out.
"""

from __future__ import annotations

import random
from pathlib import Path

from calprompt.data.dataset import SPLITS, Dataset, Split
from calprompt.data.images import SUFFIXES, ImageFiles
from calprompt.errors import CalpromptError

SPLIT_SEED = 0  # of the split made here: the same for all runs, so that no seed trains on another's test images

Labelled = list[tuple[str, int]]  # relative path and label


def read_folder(root: Path, *, split_seed: int = SPLIT_SEED) -> Dataset:
    """The dataset in a folder of class folders, or of train/, val/ and test/ with class folders in them."""
    inside = [folder.name for folder in subfolders(root)]
    if not inside:
        raise CalpromptError(f"{root} has no subfolders; expected one folder of images a class")
    looks_split = "train" in inside and bool(subfolders(root / "train"))
    if not looks_split:
        class_names, splits = _split_here(root, inside, split_seed)
    elif "test" not in inside:
        raise CalpromptError(f"{root} has train/ but no test/; put the images to test on there, a folder a class")
    else:
        class_names, splits = _split_already(root, inside)
    train, val, test = (
        Split(ImageFiles.of(root, [path for path, _ in rows]), tuple(label for _, label in rows))
        for rows in (splits[kind] for kind in SPLITS)
    )
    return Dataset(root.resolve().name, tuple(class_names), train, val, test)


def split_counts(n: int) -> tuple[int, int, int]:
    """How many of n images of a class train, validate and test: about 50, 20 and 30 %, at least one to test.

    >>> [split_counts(n) for n in (2, 3, 5, 10, 100)]
    [(1, 0, 1), (1, 1, 1), (2, 1, 2), (5, 2, 3), (50, 20, 30)]
    """
    val, test = round(n / 5), max(1, round(3 * n / 10))
    return n - val - test, val, test


def subfolders(folder: Path) -> list[Path]:
    """Visible folders in a folder, sorted by name."""
    return sorted((path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")), key=_by_name)


def image_files(folder: Path) -> list[Path]:
    """Visible image files in a folder, sorted by name; a folder without any is an error."""
    found = [path for path in folder.iterdir() if not path.name.startswith(".") and path.suffix.lower() in SUFFIXES]
    if not found:
        raise CalpromptError(f"{folder} has no images; expected files ending in {', '.join(SUFFIXES)}")
    return sorted(found, key=_by_name)


def _split_here(root: Path, class_names: list[str], seed: int) -> tuple[list[str], dict[str, Labelled]]:
    splits: dict[str, Labelled] = {kind: [] for kind in SPLITS}
    for label, name in enumerate(class_names):
        files = [_relative(path, root) for path in image_files(root / name)]
        if len(files) < 2:
            raise CalpromptError(f"class {name!r} has one image; a class needs two or more, to train and to test on")
        random.Random(f"{seed}/{name}").shuffle(files)  # a class's own draw: other classes do not change it
        train, val, _ = split_counts(len(files))
        cuts = (files[:train], files[train : train + val], files[train + val :])
        for kind, part in zip(SPLITS, cuts, strict=True):
            splits[kind] += [(path, label) for path in sorted(part)]
    return class_names, splits


def _split_already(root: Path, inside: list[str]) -> tuple[list[str], dict[str, Labelled]]:
    strange = [name for name in inside if name not in SPLITS]
    if strange:
        raise CalpromptError(f"{root} has train/ and test/, and also {strange[0]}/; expected only val/ beside them")
    class_names = [folder.name for folder in subfolders(root / "train")]
    splits: dict[str, Labelled] = {kind: [] for kind in SPLITS}
    for kind in inside:
        for folder in subfolders(root / kind):
            if folder.name not in class_names:
                raise CalpromptError(f"class {folder.name!r} is in {kind}/ but not in train/; every class must train")
            label = class_names.index(folder.name)
            splits[kind] += [(_relative(path, root), label) for path in image_files(folder)]
    return class_names, splits


def _by_name(path: Path) -> str:
    return path.name


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()
