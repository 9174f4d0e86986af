"""Datasets from folders and tables of images.

In a folder of images a class is a folder, its name the class name, and labels follow the sorted names:

    flowers/            split here: of each class 50 % to train, 20 % to validate, 30 % to test
      daisy/1.jpg …
      rose/1.jpg …

    flowers/            split already; val/ may be missing
      train/daisy/… train/rose/…
      val/…  test/…

    flowers/            to test on only
      test/daisy/… test/rose/…

Hidden files and files without the suffix of an image are left out.

A table is a CSV, TSV or JSONL file of path, label and, optionally, split:

    path,label,split                      {"path": "cats/1.jpg", "label": "cat", "split": "train"}
    cats/1.jpg,cat,train                  {"path": "dogs/7.jpg", "label": "dog", "split": "test"}
    dogs/7.jpg,dog,test

Paths are relative to the file's folder, or to `root`. Labels are class names, sorted, or numbers from 0, which a
classes file gives names to. Without splits, half of each class trains, 20 % validate and 30 % test, as in folders. A
CSV needs no header if its columns are in this order. All wrong rows are reported together.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from calprompt.data.dataset import SPLITS, Listing, Row, read_text, split_class
from calprompt.data.decoding import SUFFIXES, count_left_out
from calprompt.errors import DataError
from calprompt.text import bullets, is_utf8, parse_problem, shorten, visible


def list_folder(root: Path, *, split: bool = True) -> Listing:
    """The class names and images in a folder, see above; without `split`, images that have none are all to train."""
    inside = [folder.name for folder in subfolders(root)]
    _require_utf8(root / name for name in inside)
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
        class_names, rows = inside, _in_one_place(root, inside, split)
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
    _require_utf8(folder / name for name in found)
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


def _add_class(rows: dict[str, list[Row]], name: str, label: int, paths: list[str], split: bool) -> None:
    """The images of a class that says nothing of splits: split here, or all to train."""
    for kind, part in (split_class(name, paths) if split else {"train": paths}).items():
        rows[kind] += [(path, label) for path in part]


def _in_one_place(root: Path, inside: list[str], split: bool) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {kind: [] for kind in SPLITS}
    wrong: list[str] = []
    for folder, own in _listed(root, [(root / name, label) for label, name in enumerate(inside)], wrong):
        if split and len(own) < 2:
            others = [each for each in _visible_names(folder) if not each.lower().endswith(SUFFIXES)]
            besides = f"; it also has {count_left_out(others)}" if others else ""
            wrong.append(f"{folder} has one image; a class needs two or more, to train and to test on{besides}")
        _add_class(rows, folder.name, own[0][1], [path for path, _ in own], split)
    _refuse(wrong)
    return rows


def _split_already(root: Path, inside: list[str]) -> tuple[list[str], dict[str, list[Row]]]:
    strange = [name for name in inside if name not in SPLITS]
    if strange:
        raise DataError(f"{root} has train/ and test/, and also {strange[0]}/; expected only val/ beside them")
    class_names = [folder.name for folder in subfolders(root / ("train" if "train" in inside else "test"))]
    named = {kind: subfolders(root / kind) for kind in inside}
    _require_utf8(each for folders in named.values() for each in folders)
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
    if wrong:
        raise DataError(wrong[0] if len(wrong) == 1 else f"{len(wrong)} problems:{bullets(wrong)}")


def _require_utf8(paths: Iterable[Path]) -> None:
    _refuse([f"the name of {visible(str(path))} is not UTF-8; rename it" for path in paths if not is_utf8(path.name)])


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


TABLES = (".csv", ".tsv", ".jsonl")
COLUMNS = {
    "path": ("path", "file", "filename", "filepath", "image", "image_path"),
    "label": ("label", "class", "classname", "class_name", "category"),
    "split": ("split", "set", "subset"),
}
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")

TableRow = tuple[str, str, str]  # path, label and split of a row, the split "" if it says none


def list_table(path: Path, root: Path | None = None, *, split: bool = True) -> Listing:
    """The class names and images in a table; without `split`, images that have none are all to train."""
    records = _jsonl(path) if path.suffix.lower() == ".jsonl" else _csv(path)
    entries = _checked(path, records)
    folder, paths = _places(root or path.parent, [row[0] for row in entries])
    entries = [(place, label, split) for place, (_, label, split) in zip(paths, entries, strict=True)]
    class_names = _class_names(path, [label for _, label, _ in entries])
    labels = {name: label for label, name in enumerate(class_names)}
    rows: dict[str, list[Row]] = {kind: [] for kind in SPLITS}
    if any(side for _, _, side in entries):
        for place, label, side in entries:
            rows[side].append((place, labels[label]))
        return Listing(path.stem, tuple(class_names), folder, rows)
    for name in class_names:
        own = [place for place, label, _ in entries if label == name]
        if split and len(own) < 2:
            raise DataError(f"{path.name}: class {name!r} has one image; it needs two or more, to train and to test")
        _add_class(rows, name, labels[name], own, split)
    return Listing(path.stem, tuple(class_names), folder, rows)


def _csv(path: Path) -> Iterable[tuple[int, Mapping[str, Any]]]:
    text = read_text(path)
    first = text.splitlines()[0] if text.strip() else ""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ";" if first.count(";") > first.count(",") else ","
    rows = [(number, [cell.strip() for cell in row]) for number, row in enumerate(_cells(path, text, delimiter), 1)]
    rows = [(number, row) for number, row in rows if any(row)]
    if not rows:
        raise DataError(f"{path} is empty; expected rows of path, label and, optionally, split")
    header = [_column(cell) for cell in rows[0][1]]
    _refuse_twice(path, header, rows[0][1])
    if "path" in header and "label" in header:
        _refuse_unnamed(path, rows[0][1], header, rows[1:])
        rows = rows[1:]
    elif "path" in header or "label" in header:
        lacks = "label" if "path" in header else "path"
        raise DataError(f"{path.name} has no column '{lacks}'; its first line is {','.join(rows[0][1])!r}")
    else:
        header = ["path", "label", "split"]
        start = rows[0][1]
        if len(start) > 1 and _is_image(start[1]) and not _is_image(start[0]):
            raise DataError(
                f"{path.name} has the image in the second column, {','.join(start)!r}; columns without names are path, "
                "label, split. Put them in this order, or write their names into the first line"
            )
    for number, row in rows:
        if any(row[len(header) :]):
            raise DataError(
                f"{path.name}, line {number} has {len(row)} cells, and there are {len(header)} columns; put text "
                f"with a {'comma' if delimiter == ',' else 'delimiter'} in quotes, and give every column a name"
            )
        yield number, dict(zip(header, row, strict=False))


def _is_image(cell: str) -> bool:
    return cell.lower().endswith(SUFFIXES)


def _refuse_twice(path: Path, columns: Iterable[str], names: Iterable[str]) -> None:
    """Raise if two columns, or two keys of a record, mean the same."""
    found: dict[str, str] = {}
    for column, name in zip(columns, names, strict=True):
        if column in COLUMNS and column in found:
            raise DataError(
                f"{path.name} has two columns for the {column}, {found[column]!r} and {name!r}; keep one, or call the "
                "other something else"
            )
        found[column] = name


def _refuse_unnamed(path: Path, names: list[str], header: list[str], rows: list[tuple[int, list[str]]]) -> None:
    """Raise for a column of splits that has no name, and warn of one that is called something else."""
    if "split" in header:
        return
    for place in range(max((len(row) for _, row in rows), default=0)):
        column = header[place] if place < len(header) else ""
        words = {row[place].lower() for _, row in rows if place < len(row) and row[place]}
        if column in COLUMNS or not words or not words <= SPLIT_WORDS.keys():
            continue
        what = f"column {place + 1} of {path.name} holds {' and '.join(sorted(words))}"
        if not column:
            raise DataError(f"{what}, and has no name; name the column 'split' in the first line, or remove it")
        warnings.warn(
            f"{what} and is called {names[place]!r}, so it is not used; call it 'split' if it is", stacklevel=2
        )


def _cells(path: Path, text: str, delimiter: str) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(text), delimiter=delimiter, strict=True, skipinitialspace=True))
    except csv.Error as error:
        raise DataError(f"{path} is not a readable CSV file: {error}") from error


def _jsonl(path: Path) -> Iterable[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path.name}, line {number} is not JSON: {parse_problem(error)}") from error
        if not isinstance(record, dict):
            raise DataError(f'{path.name}, line {number} must be an object such as {{"path": …, "label": …}}')
        _refuse_twice(path, [_column(key) for key in record], record)
        yield number, {_column(key): value for key, value in record.items()}


def _checked(path: Path, records: Iterable[tuple[int, Mapping[str, Any]]]) -> list[TableRow]:
    """Every row as (path, label, split), or one error that lists all rows that are wrong."""
    entries: list[TableRow] = []
    wrong: list[str] = []
    for number, record in records:
        strange = next((name for name in COLUMNS if not _is_plain(record.get(name))), None)
        if strange is not None:
            wrong.append(f"line {number}: {strange} is {json.dumps(record[strange])[:60]}, expected text")
            continue
        place, label, split = (str(record.get(name, "") if record.get(name) is not None else "") for name in COLUMNS)
        place, label, split = place.strip(), label.strip(), split.strip().lower()
        for name, value in (("path", place), ("label", label)):
            if not value:
                wrong.append(f"line {number} has no {name}")
        if split and split not in SPLIT_WORDS:
            wrong.append(f"line {number}: split {split!r} is none of {', '.join(SPLITS)}")
        entries.append((place, label, SPLIT_WORDS.get(split, "")))
    if not entries and not wrong:
        raise DataError(f"{path} has no rows; expected path, label and, optionally, split")
    listed = Counter(os.path.normpath(place) for place, _, _ in entries if place)
    wrong += [f"{place} is listed {n} times" for place, n in listed.items() if n > 1]
    without = sum(not split for _, _, split in entries)
    if 0 < without < len(entries) and not wrong:
        wrong.append(f"{without} of {len(entries)} rows have no split; give all of them one, or none")
    if wrong:
        raise DataError(f"{path} cannot be used:{bullets(wrong)}")
    if not without and not any(split == "test" for _, _, split in entries):
        raise DataError(f"{path.name} has no row of split test; expected images to test on")
    return entries


def _class_names(path: Path, labels: list[str]) -> list[str]:
    found = set(labels)
    if not all(label.isdecimal() for label in found):
        if all(_NUMBER.fullmatch(label) for label in found):
            in_order: list[str] = sorted(found, key=lambda label: float(label))
            raise DataError(
                f"{path.name}: the labels are the numbers {shorten(in_order)}; expected whole numbers "
                f"0 to {len(found) - 1}, with their names in classes.txt beside it, or the names of the classes"
            )
        return sorted(found)
    numbers = sorted({int(label) for label in found})
    if numbers != list(range(len(numbers))) or len(numbers) != len(found):
        raise DataError(
            f"{path.name}: the labels are {len(numbers)} numbers from {numbers[0]} to {numbers[-1]}; expected all of 0 "
            f"to {len(numbers) - 1}"
        )
    return [str(number) for number in numbers]


def _is_plain(value: Any) -> bool:
    """Whether a value is text, a number or missing."""
    return value is None or (isinstance(value, str | int | float) and not isinstance(value, bool))


def _places(root: Path, paths: list[str]) -> tuple[Path, list[str]]:
    """The folder that paths are relative to: absolute paths become relative to the folder they share."""
    absolute = [os.path.isabs(path) for path in paths]
    if not any(absolute):
        return root, [PurePosixPath(path).as_posix() for path in paths]
    whole = [path if own else str((root / path).resolve()) for path, own in zip(paths, absolute, strict=True)]
    shared = Path(os.path.commonpath([os.path.dirname(path) for path in whole]))
    return shared, [Path(path).relative_to(shared).as_posix() for path in whole]


def _column(name: str) -> str:
    found = name.strip().lower().replace(" ", "_")
    return next((column for column, words in COLUMNS.items() if found in words), name)
