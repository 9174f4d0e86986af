"""The field's split files, such as split_zhou_EuroSAT.json, read and written to the byte.

    {"train": [["Forest/Forest_1.jpg", 1, "Forest"], …], "val": […], "test": […]}

A row is a path relative to an image folder, a label from 0 and the name of its class. The image folder is `root`, or
the folder of the file, or the one folder in it that has the first image.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calprompt.data.folders import subfolders
from calprompt.data.listing import SPLITS, Listing
from calprompt.errors import DataError
from calprompt.files import read_json, write_bytes

NamedRow = tuple[str, int, str]  # path, label, class name


def list_split_file(path: Path, root: Path | None = None) -> Listing:
    """The class names and images in a split file."""
    split = read_split_file(path)
    first = next(row[0] for kind in SPLITS for row in split[kind])
    folder = root if root is not None else find_images(path.parent, first, path.name)
    return listing(path.stem, folder, split, path.name)


def read_split_file(path: Path) -> dict[str, list[NamedRow]]:
    """The rows of a split file by split; raises if it is not one."""
    payload = read_json(path)
    if not is_split(payload):
        raise DataError(f'{path} is no split file; expected {{"train": [[path, label, class name], …], "val", "test"}}')
    rows: dict[str, list[NamedRow]] = {}
    for kind in SPLITS:
        rows[kind] = []
        for number, row in enumerate(payload[kind]):
            if not _is_row(row):
                raise DataError(f"{path.name}: {kind} row {number} is {row!r}, expected [path, label, class name]")
            rows[kind].append((row[0], int(row[1]), row[2]))
    if not any(rows.values()):
        raise DataError(f"{path} has no rows")
    return rows


def write_split_file(path: Path, split: Mapping[str, Sequence[NamedRow]]) -> None:
    """A split file, to the byte as the public code writes it.

    Args:
        path: Of the file.
        split: Rows of (path, label, class name) by split.
    """
    rows = {kind: [list(row) for row in split[kind]] for kind in SPLITS}
    write_bytes(path, json.dumps(rows, indent=4, separators=(",", ": ")).encode())


def listing(name: str, root: Path, split: Mapping[str, Sequence[NamedRow]], where: str) -> Listing:
    """The rows of a split file as a listing: labels must be all of 0 to n - 1, each with one name."""
    names: dict[int, str] = {}
    for kind in SPLITS:
        for path, label, class_name in split[kind]:
            if names.setdefault(label, class_name) != class_name:
                raise DataError(
                    f"{where}: label {label} is {names[label]!r} and, for {path}, {class_name!r}; expected one name"
                )
    if sorted(names) != list(range(len(names))):
        lacking = next(label for label in range(len(names) + 1) if label not in names)
        raise DataError(
            f"{where}: {len(names)} classes must have labels 0 to {len(names) - 1}, and {lacking} is missing"
        )
    rows = {kind: [(path, label) for path, label, _ in split[kind]] for kind in SPLITS}
    return Listing(name, root, tuple(names[label] for label in range(len(names))), rows)


def find_images(folder: Path, first: str, where: str) -> Path:
    """The folder that has the first image: this one, or the one in it that does."""
    if (folder / first).is_file():
        return folder
    found = [inside for inside in subfolders(folder) if (inside / first).is_file()]
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(f"{where}: {first} is in {found[0].name}/ and in {found[1].name}/; say which with root")
    raise DataError(
        f"{where}: {first} is neither in {folder} nor in a folder in it; say with root where the images are"
    )


def is_split(payload: Any) -> bool:
    """Whether JSON data looks like a split file."""
    return isinstance(payload, dict) and all(isinstance(payload.get(kind), list) for kind in SPLITS)


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 3:
        return False
    path, label, name = row
    number = isinstance(label, int) and not isinstance(label, bool)
    return isinstance(path, str) and bool(path) and number and label >= 0 and isinstance(name, str) and bool(name)
