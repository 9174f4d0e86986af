"""Datasets from folders of images; a class is a folder, its name the class name, and labels follow the sorted names.

    flowers/            split here: of each class 50 % to train, 20 % to validate, 30 % to test
      daisy/1.jpg …
      rose/1.jpg …

    flowers/            split already; val/ may be missing
      train/daisy/… train/rose/…
      val/…  test/…

    flowers/            to test on only
      test/daisy/… test/rose/…

Hidden files and files without the suffix of an image are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from calprompt.data.dataset import SPLIT_SEED, SPLITS, Listing, Row, split_class
from calprompt.data.decoding import SUFFIXES, count_left_out
from calprompt.errors import DataError
from calprompt.text import bullets, is_utf8, visible


def list_folder(root: Path, *, split_seed: int = SPLIT_SEED, split: bool = True) -> Listing:
    """The class names and images in a folder, see above; without `split`, images that have none are all to train."""
    inside = [folder.name for folder in subfolders(root)]
    _refuse([unprintable(root / name) for name in inside if not is_utf8(name)])
    if not inside:
        own = f"; it has images itself: did you mean {root.resolve().parent}?" if _has_images(root) else ""
        raise DataError(f"{root} has no subfolders; expected one folder of images per class{own}")
    only = next((name for name in ("train", "test") if name in inside and has_class_folders(root / name)), None)
    if only is None and not _is_data(root) and (meant := _data_inside(root)):
        several = " or ".join(map(str, meant[:3]))
        raise DataError(
            f"{root} has no folders of images; the subfolders of {meant[0]} look like classes: did you mean {several}?"
        )
    looks_split = ("train" in inside and bool(subfolders(root / "train"))) or (
        inside == ["test"] and bool(subfolders(root / "test"))
    )
    if not looks_split:
        class_names, rows = inside, _in_one_place(root, inside, split_seed if split else None)
    elif "test" not in inside:
        raise DataError(
            f"{root} has train/ but no test/; put the images to test on there, one folder per class, or give "
            f"{root / 'train'} to have its images split"
        )
    else:
        class_names, rows = _split_already(root, inside)
    return Listing(root.resolve().name, tuple(class_names), root, rows)


def subfolders(folder: Path) -> list[Path]:
    """Visible folders in a folder, sorted by name."""
    return sorted(
        (path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")),
        key=lambda path: path.name,
    )


def image_names(folder: Path) -> list[str]:
    """Names of the visible image files in a folder, sorted; a folder without any is an error."""
    there = _visible_names(folder)
    found = [name for name in there if name.lower().endswith(SUFFIXES)]
    if not found:
        others = f"; it has {count_left_out(there)}" if there else ""
        raise DataError(f"{folder} has no images; expected files ending in {', '.join(SUFFIXES)}{others}")
    _refuse([unprintable(folder / name) for name in found if not is_utf8(name)])
    return sorted(found)


def _visible_names(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if not name.startswith(".")]


def class_rows(root: Path, folder: Path, label: int) -> list[Row]:
    """A row for every image in the folder of a class."""
    inside = folder.relative_to(root).as_posix()
    return [(f"{inside}/{name}", label) for name in image_names(folder)]


def _listed(root: Path, folders: Iterable[tuple[Path, int]], wrong: list[str]) -> Iterator[tuple[Path, list[Row]]]:
    """The rows of every class folder; problems are added to `wrong`."""
    for folder, label in folders:
        try:
            yield folder, class_rows(root, folder, label)
        except DataError as error:
            wrong.append(str(error))


def _in_one_place(root: Path, inside: list[str], seed: int | None) -> dict[str, list[Row]]:
    """The rows of class folders without splits: split here, or all for training without a seed."""
    rows: dict[str, list[Row]] = {kind: [] for kind in SPLITS}
    wrong: list[str] = []
    for folder, own in _listed(root, [(root / name, label) for label, name in enumerate(inside)], wrong):
        if seed is None:
            rows["train"] += own
            continue
        if len(own) < 2:
            others = [each for each in _visible_names(folder) if not each.lower().endswith(SUFFIXES)]
            besides = f"; it also has {count_left_out(others)}" if others else ""
            wrong.append(f"{folder} has one image; a class needs two or more, to train and to test on{besides}")
        for kind, part in split_class(folder.name, [path for path, _ in own], seed).items():
            rows[kind] += [(path, own[0][1]) for path in part]
    _refuse(wrong)
    return rows


def _split_already(root: Path, inside: list[str]) -> tuple[list[str], dict[str, list[Row]]]:
    strange = [name for name in inside if name not in SPLITS]
    if strange:
        raise DataError(f"{root} has train/ and test/, and also {strange[0]}/; expected only val/ beside them")
    class_names = [folder.name for folder in subfolders(root / ("train" if "train" in inside else "test"))]
    named = {kind: subfolders(root / kind) for kind in inside}
    _refuse([unprintable(each) for folders in named.values() for each in folders if not is_utf8(each.name)])
    labels = {name: label for label, name in enumerate(class_names)}
    rows: dict[str, list[Row]] = {kind: [] for kind in SPLITS}
    wrong: list[str] = []
    for kind, folders in named.items():
        strange = [each.name for each in folders if each.name not in labels]
        wrong += [f"class {name!r} is in {kind}/ but not in train/; every class must train" for name in strange]
        known = [(each, labels[each.name]) for each in folders if each.name in labels]
        rows[kind] = [row for _, own in _listed(root, known, wrong) for row in own]
    _refuse(wrong)
    return class_names, rows


def _refuse(wrong: list[str]) -> None:
    """Raise one error for all problems."""
    if wrong:
        raise DataError(wrong[0] if len(wrong) == 1 else f"{len(wrong)} problems:{bullets(wrong)}")


def _has_images(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".") for entry in entries)


def has_class_folders(folder: Path) -> bool:
    """Whether a folder is there and some folder in it has images."""
    return folder.is_dir() and any(map(_has_images, subfolders(folder)))


def _is_data(folder: Path) -> bool:
    """Whether a folder contains class folders, or train and test with class folders."""
    return has_class_folders(folder) or all(has_class_folders(folder / name) for name in ("train", "test"))


def _data_inside(folder: Path) -> list[Path]:
    """The folders one level down, or else two, that look like data."""
    below = subfolders(folder)
    return [sub for sub in below if _is_data(sub)] or [
        each for sub in below for each in subfolders(sub) if _is_data(each)
    ]


def unprintable(path: Path) -> str:
    """The problem of a file or folder whose name is not UTF-8."""
    return f"the name of {visible(str(path))} is not UTF-8; rename it"
