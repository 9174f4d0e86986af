"""What there is to know about data of one's own at a glance: how much of everything, and what was left out."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path, PurePosixPath

from calprompt.data.dataset import Dataset
from calprompt.data.decoding import SUFFIXES
from calprompt.data.images import ImageFiles
from calprompt.errors import CalpromptError

SHOTS = 16  # of the published protocol
SHOWN = 5


def overview(dataset: Dataset, path: Path) -> tuple[list[str], list[str]]:
    """Facts about a dataset and things to know, a line each; `path` is where it was loaded from."""
    facts = [f"classes: {len(dataset.class_names)}, {_few(dataset.class_names)}", f"base and novel: {_cut(dataset)}"]
    facts += [f"{kind} images: {len(split):,}" for kind, split in dataset.splits.items()]
    if dataset.template is not None:
        facts.append(f"template: {dataset.template}")
    notes = []
    trained = Counter(dataset.train.labels)
    small = [name for label, name in enumerate(dataset.class_names) if trained[label] < SHOTS]
    if small and not dataset.test_only:
        notes.append(f"fewer than {SHOTS} training images, so that all of them are shots: {_few(small)}")
    notes += [f"left out, {why}: {_few(left)}" for why, left in left_out(dataset, path).items()]
    return facts, notes


def left_out(dataset: Dataset, path: Path) -> dict[str, list[str]]:
    """What is visible in a folder dataset and not used, by the reason."""
    images = dataset.train.images
    if not path.is_dir() or not isinstance(images, ImageFiles):
        return {}
    listed = {place for split in dataset.splits.values() for place in split.images.paths}  # type: ignore[attr-defined]
    classes = {PurePosixPath(place).parent for place in listed}
    found: dict[str, list[str]] = {}
    for folder in sorted(classes):
        for place in _visible(images.root, folder):
            if (images.root / place).is_dir():
                found.setdefault("a folder within that of a class", []).append(str(place))
            elif not place.name.lower().endswith(SUFFIXES):
                found.setdefault("by its suffix no image", []).append(str(place))
    above = {parent for folder in classes for parent in folder.parents}
    for folder in sorted(above - classes):
        loose = [str(place) for place in _visible(images.root, folder) if place.name.lower().endswith(SUFFIXES)]
        if loose:
            found.setdefault("in no folder of a class", []).extend(loose)
    return found


def _visible(root: Path, folder: PurePosixPath) -> list[PurePosixPath]:
    return [folder / name for name in sorted(os.listdir(root / folder)) if not name.startswith(".")]


def _cut(dataset: Dataset) -> str:
    from calprompt.data.splits import base_novel

    try:
        base, novel = base_novel(dataset)
    except CalpromptError as error:
        return f"not possible, {error}"
    how = "the first half of the labels" if dataset.base is None else "by list"
    tested = f"{len(base.test):,} and {len(novel.test):,} test images"
    return f"{len(base.class_names)} and {len(novel.class_names)} classes ({how}), {tested}"


def _few(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f", … ({len(names)} in all)" if len(names) > SHOWN else "")
