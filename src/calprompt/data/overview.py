"""What there is to know about data of one's own at a glance: how much of everything, and what was left out."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

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
    left = left_out(dataset, path)
    if left:
        notes.append(f"left out, by its suffix no image: {_few(left)}")
    return facts, notes


def left_out(dataset: Dataset, path: Path) -> list[str]:
    """Visible files in the folders of a folder dataset which are no images by their suffix."""
    images = dataset.train.images
    if not path.is_dir() or not isinstance(images, ImageFiles):
        return []
    listed = [place for split in dataset.splits.values() for place in split.images.paths]  # type: ignore[attr-defined]
    found = []
    for folder in sorted({place.rpartition("/")[0] for place in listed}):
        names = sorted(os.listdir(images.root / folder))
        found += [
            f"{folder}/{name}" for name in names if not name.startswith(".") and not name.lower().endswith(SUFFIXES)
        ]
    return found


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
