"""What there is to know about data of one's own at a glance: how much of everything, and what was left out."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from calprompt.data.dataset import Dataset
from calprompt.data.decoding import SUFFIXES, count_left_out
from calprompt.data.images import ImageFiles
from calprompt.data.load import is_class_folders
from calprompt.errors import CalpromptError
from calprompt.text import shorten

if TYPE_CHECKING:
    from calprompt.data.labelled import LabelledImages

PROTOCOL_SHOTS = 16  # of the published protocol
NESTED, LOOSE, OTHER = "a folder within that of a class", "in no folder of a class", "by its suffix no image"


def overview(dataset: Dataset, path: Path) -> tuple[list[str], list[str]]:
    """Facts about a dataset and things to know, a line each; `path` is where it was loaded from."""
    facts = [f"classes: {len(dataset.class_names)}, {shorten(dataset.class_names)}", f"base and novel: {_cut(dataset)}"]
    facts += [f"{kind} images: {len(split):,}" for kind, split in dataset.splits.items()]
    if dataset.template is not None:
        facts.append(f"template: {dataset.template}")
    notes = []
    trained = Counter(dataset.train.labels)
    small = [name for label, name in enumerate(dataset.class_names) if trained[label] < PROTOCOL_SHOTS]
    if small and not dataset.test_only:
        notes.append(f"fewer than {PROTOCOL_SHOTS} training images, so that all of them are shots: {shorten(small)}")
    return facts, [*notes, *_sentences(left_out(dataset, path))]


def warn_left_out(dataset: Dataset | LabelledImages, path: Path) -> None:
    """Warn of what lies in a folder of class folders and is not used: no images, or where no class has them."""
    if is_class_folders(path):
        for line in _sentences(left_out(dataset, path)):
            warnings.warn(f"{path}: {line}", stacklevel=2)


def _sentences(left: Mapping[str, Sequence[str]]) -> list[str]:
    """How many were left out for each reason, and which."""
    return [
        f"left out, {count_left_out(names)}: {shorten(names)}" if why == OTHER else f"left out, {why}: {shorten(names)}"
        for why, names in left.items()
    ]


def left_out(dataset: Dataset | LabelledImages, path: Path) -> dict[str, list[str]]:
    """What is visible in a folder dataset and not used, by the reason."""
    images = dataset.train.images
    if not path.is_dir() or not isinstance(images, ImageFiles):
        return {}
    listed = {place for split in dataset.splits.values() for place in split.images.paths}  # type: ignore[attr-defined]
    classes = {PurePosixPath(folder) for folder in {place.rpartition("/")[0] for place in listed}}
    above = {parent for folder in classes for parent in folder.parents}
    inside = classes | above
    found: dict[str, list[str]] = {}
    for folder in sorted(classes):
        for entry in _visible(images.root / folder):
            if _is_folder(entry):
                place = folder / entry.name
                if place not in inside and str(place) not in listed:  # one called a.jpg is listed, and cannot be read
                    found.setdefault(NESTED, []).append(str(place))
            elif not entry.name.lower().endswith(SUFFIXES):
                found.setdefault(OTHER, []).append(str(folder / entry.name))
    for folder in sorted(above - classes):
        loose = [entry.name for entry in _visible(images.root / folder) if entry.name.lower().endswith(SUFFIXES)]
        if loose:
            found.setdefault(LOOSE, []).extend(str(folder / name) for name in loose)
    return found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself
        return False


def _visible(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What is in a folder, sorted by name; nothing, if it is not there."""
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        yield from sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _cut(dataset: Dataset) -> str:
    from calprompt.data.splits import base_novel

    try:
        base, novel = base_novel(dataset)
    except CalpromptError as error:
        return f"not possible, {error.spelled({})}"
    how = "the first half of the labels" if dataset.base is None else "by list"
    tested = f"{len(base.test):,} and {len(novel.test):,} test images"
    return f"{len(base.class_names)} and {len(novel.class_names)} classes ({how}), {tested}"
