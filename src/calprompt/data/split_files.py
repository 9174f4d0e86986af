"""Splits as files: those of the field, and drawn splits to share, with a digest of every image.

The field's split files, such as split_zhou_EuroSAT.json, are read and written to the byte:

    {"train": [["Forest/Forest_1.jpg", 1, "Forest"], …], "val": […], "test": […]}

A row is a path relative to an image folder, a label from 0 and the name of its class. The image folder is `root`, or
the folder of the file, or the one folder in it that has the first image.

A drawn split has a digest of every image, which is checked when it is loaded:

    {"format": "calprompt split 1", "name": "dtd", "template": …, "base": …, "class_names": […],
     "train": [["banded/banded_0002.jpg", 0, "quick 95462 3f2a9c0d1b7e4f60"], …], "val": […], "test": […],
     "digest": …}

A quick digest is of the size and of the first and last 64 KiB; "sha256" reads it all. Image folders are found in the
same way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from calprompt.data.dataset import SPLITS, Dataset, Listing
from calprompt.data.images import ImageFiles
from calprompt.data.listings import subfolders
from calprompt.errors import DataError
from calprompt.files import file_digest, json_digest, read_json, write_bytes
from calprompt.registry import unknown
from calprompt.text import bullets

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
    if not (isinstance(payload, dict) and all(isinstance(payload.get(kind), list) for kind in SPLITS)):
        raise DataError(f'{path} is not a split file; expected {{"train": [[path, label, class name], …], "val": …}}')
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
    """A split file, to the byte as the public code writes it."""
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
    return Listing(name, tuple(names[label] for label in range(len(names))), root, rows)


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


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 3:
        return False
    path, label, name = row
    number = isinstance(label, int) and not isinstance(label, bool)
    return isinstance(path, str) and bool(path) and number and label >= 0 and isinstance(name, str) and bool(name)


FORMAT = "calprompt split 1"
ABOUT = ("name", "template", "templates", "base", "test_only", "repeated_names", "class_names")
EDGE_BYTES = 1 << 16  # bytes at either end that a quick digest covers


def save_split(dataset: Dataset, path: str | Path, *, digests: str = "quick") -> None:
    """Write a dataset's images, such as `few_shot` drew, to a file that `load_split` reads and checks.

    Args:
        dataset: Dataset of image files in one folder.
        path: Path of the file.
        digests: "quick", or "sha256" of whole files.
    """
    if digests not in DIGESTS:
        raise unknown("kind of digest", digests, DIGESTS)
    payload: dict[str, Any] = {"format": FORMAT, **{name: getattr(dataset, name) for name in ABOUT}}
    if dataset.group_by is not None:
        payload["group_by"] = dataset.group_by
    for kind, split in dataset.splits.items():
        images = split.images
        if not isinstance(images, ImageFiles):
            raise DataError(f"{dataset.name} is in memory; only image files can be listed in a split")
        outside = next((place for place in images.paths if not _is_inside(place)), None)
        if outside is not None:
            raise DataError(
                f"{dataset.name} has {outside}, which is outside of its image folder {images.root}; a split to share "
                "lists images in one folder. Load the data with a root that has them all"
            )
        payload[kind] = [
            [place, label, f"{digests} {DIGESTS[digests](images.root / place)}"]
            for place, label in zip(images.paths, split.labels, strict=True)
        ]
    payload["digest"] = json_digest(payload)
    write_bytes(Path(path), _text(payload).encode())


def load_split(path: str | Path, root: str | Path | None = None) -> Dataset:
    """The dataset a saved split lists; an image that is missing or has changed is named, all of them at once.

    Args:
        path: A file that `save_split` wrote.
        root: Folder of the images; `None`: found beside the file.
    """
    path = Path(path).expanduser()
    payload = read_json(path)
    if not is_saved_split(payload):
        raise DataError(f"{path} is not a saved split; expected a file that save_split wrote")
    try:
        whole = json_digest({key: value for key, value in payload.items() if key != "digest"}) == payload["digest"]
        rows = [(kind, *row) for kind in SPLITS for row in payload[kind]]
        outside = next((row[1] for row in rows if not _is_inside(row[1])), None)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged: {error!r}; ask for it again") from error
    if not whole:
        raise DataError(f"{path} was changed after it was saved; ask for it again, or save the split anew")
    if outside is not None:
        raise DataError(f"{path} lists {outside}, which is outside of the image folder")
    folder = Path(root).expanduser() if root is not None else find_images(path.parent, rows[0][1], path.name)
    _check(path, folder, [(place, digest) for _, place, _, digest in rows])

    about = {name: payload.get(name) for name in (*ABOUT, "group_by")}
    for name in ("class_names", "base"):
        about[name] = None if about[name] is None else tuple(about[name])
    return Listing(root=folder, rows={kind: [row[:2] for row in payload[kind]] for kind in SPLITS}, **about).dataset()


def is_saved_split(payload: Any) -> bool:
    """Whether JSON data are a split that `save_split` wrote."""
    return isinstance(payload, dict) and payload.get("format") == FORMAT


def quick_digest(path: Path) -> str:
    """Size, and a digest of it and of both ends of the file."""
    with path.open("rb") as file:
        start = file.read(EDGE_BYTES)
        size = file.seek(0, 2)
        file.seek(max(len(start), size - EDGE_BYTES))
        digest = hashlib.sha256(str(size).encode() + b" " + start + file.read(EDGE_BYTES))
    return f"{size} {digest.hexdigest()[:16]}"


DIGESTS: dict[str, Callable[[Path], str]] = {"quick": quick_digest, "sha256": file_digest}


def _check(path: Path, folder: Path, rows: list[tuple[str, str]]) -> None:
    wrong = []
    for place, expected in rows:
        kind, _, digest = expected.partition(" ")
        if kind not in DIGESTS:
            raise unknown(f"kind of digest in {path.name}", kind, DIGESTS)
        try:
            if DIGESTS[kind](folder / place) != digest:
                wrong.append(f"{place} (changed)")
        except OSError as error:
            wrong.append(f"{place} ({error.strerror or error})")
    if wrong:
        raise DataError(
            f"{path.name} lists {len(rows)} images in {folder}, of which {len(wrong)} are missing or have changed:"
            + bullets(wrong)
        )


def _is_inside(place: str) -> bool:
    pure = PurePosixPath(place)
    return not pure.is_absolute() and ".." not in pure.parts


def _text(payload: dict[str, Any]) -> str:
    """JSON with a line for every image, so that two files can be compared."""
    parts = []
    for key, value in payload.items():
        if key in SPLITS and value:
            rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in value)
            parts.append(f'"{key}": [\n  {rows}\n ]')
        else:
            parts.append(f'"{key}": {json.dumps(value, ensure_ascii=False)}')
    return "{\n " + ",\n ".join(parts) + "\n}\n"
