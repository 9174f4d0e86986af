"""A classes file: the order of the classes, their names in prompts, a template, and which classes are base.

    classes.txt       one line a class, in order; with a tab or "=" if its name is not that of its folder
                        n02085620 = Chihuahua
    classes.json      {"classes": ["ant", "bee"], "template": "a photo of a {}, an insect.", "base": ["ant"]}
    classes.yaml      the same; classes may also be {folder: name}

Lines that are all folders (or labels) say their order. If the first word of every line is a folder, the rest is its
name, as in CoOp's classnames.txt ("n01440764 tench"); that half of the lines are so and others are not is an error.
Lines of which none is a folder are names for them, in sorted order. A file of this name in the dataset's folder, or
beside its table or split file, is found automatically.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from calprompt.data.dataset import Listing, read_lines, read_text
from calprompt.errors import DataError
from calprompt.registry import unknown
from calprompt.text import parse_problem, shorten

if TYPE_CHECKING:
    from calprompt.data.dataset import Dataset

T = TypeVar("T", "Listing", "Dataset")

FILES = ("classes.txt", "classes.json", "classes.yaml", "classes.yml")
KEYS = ("classes", "template", "base")


@dataclass(frozen=True)
class Classes:
    """The contents of a classes file; `entries` are (folder, name), the folder None where only a name was given."""

    where: str
    entries: tuple[tuple[str | None, str], ...] = ()
    template: str | None = None
    base: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        folders = [folder for folder, _ in self.entries if folder is not None]
        names = [name for _, name in self.entries]
        _refuse_repeated(self.where, "folder", folders, len(set(folders)))
        _refuse_repeated(self.where, "name", names, len(set(names)))

    def apply(self, listing: Listing) -> Listing:
        """The listing in this order, under these names, with this template and these base classes."""
        if self.entries:
            listing = self._ordered(listing)
        if self.template is not None:
            listing = replace(listing, template=self.template, templates=None)
        return listing if self.base is None else with_base(listing, self.base, self.where)

    def _ordered(self, listing: Listing) -> Listing:
        own = listing.class_names
        known = _class_folders(listing) | {name: label for label, name in reversed(list(enumerate(own)))}
        entries = self._folders_and_names(own, known)
        lacking = [folder for folder, _ in entries if folder not in known]
        if lacking:
            raise DataError(f"{self.where} lists {lacking[0]!r}, and {listing.name} has no such class: {shorten(own)}")
        new = {known[folder]: label for label, (folder, _) in enumerate(entries)}
        _refuse_repeated(self.where, "folder", [own[known[folder]] for folder, _ in entries], len(new))
        left = [name for label, name in enumerate(own) if label not in new]
        if left:
            raise DataError(f"{self.where} does not list {shorten(left)}; add a line for it, or remove its images")
        names = tuple(name for _, name in entries)
        if not listing.repeated_names:
            _refuse_repeated(self.where, "name", names, len(set(names)))
        rows = {kind: [(path, new[label]) for path, label in rows] for kind, rows in listing.rows.items()}
        base = None if listing.base is None else tuple(sorted(new[label] for label in listing.base))
        return replace(listing, class_names=names, rows=rows, base=base)

    def _folders_and_names(self, own: tuple[str, ...], known: Mapping[str, int]) -> list[tuple[str, str]]:
        """Folder and name of every entry; `known` are all identifiers of classes."""
        plain = [name for folder, name in self.entries if folder is None]
        if len(plain) == len(self.entries):
            split = self._split_lines(own, known)
            if split is not None:
                return split
            if not set(plain) & set(own):
                if len(plain) != len(own):
                    raise DataError(f"{self.where} has {len(plain)} names for {len(own)} classes: {shorten(own)}")
                return list(zip(own, plain, strict=True))
        return [(name if folder is None else folder, name) for folder, name in self.entries]

    def _split_lines(self, own: tuple[str, ...], known: Mapping[str, int]) -> list[tuple[str, str]] | None:
        """Folder and name of lines such as "ADI adipose tissue"; None if the lines are not of that form."""
        lines = [name for _, name in self.entries]
        if set(lines) <= set(own):
            return None
        words = [line.partition(" ")[::2] for line in lines]
        fit = [word in known and bool(name.strip()) for word, name in words]
        if not any(fit) or 2 * sum(fit) < len(lines):
            return None
        if not all(fit):
            raise DataError(
                f"{self.where} has lines such as {lines[fit.index(True)]!r}, a class folder and its name, and also "
                f"{lines[fit.index(False)]!r}; write all of them in that form, or all as 'folder = name'"
            )
        return [(word, name.strip()) for word, name in words]


def find_classes(folder: Path) -> Path | None:
    """The classes file in a folder, if there is one; two are an error."""
    found = [folder / name for name in FILES if (folder / name).is_file()]
    if len(found) > 1:
        raise DataError(f"{folder} has {found[0].name} and {found[1].name}; keep one")
    return found[0] if found else None


def read_classes(path: Path) -> Classes:
    if path.suffix.lower() not in (".json", ".yaml", ".yml"):
        lines = read_lines(path)
        if not lines:
            raise DataError(f"{path} is empty; expected the name of a class on every line")
        return Classes(path.name, tuple(map(_line, lines)))
    text = read_text(path)
    try:
        contents = json.loads(text) if path.suffix.lower() == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {parse_problem(error)}") from error
    if contents in (None, [], {}):
        raise DataError(f"{path} is empty; expected some of {', '.join(KEYS)}")
    if isinstance(contents, list):
        contents = {"classes": contents}
    if not isinstance(contents, dict):
        raise DataError(f"{path} must have some of {', '.join(KEYS)}, got {type(contents).__name__}")
    for key in contents:
        if key not in KEYS:
            raise unknown(f"key in {path.name}", str(key), KEYS)
    template = contents.get("template")
    if template is not None and (not isinstance(template, str) or template.count("{}") != 1):
        raise DataError(f"template in {path.name} must be a sentence with one {{}}, got {template!r}")
    base = contents.get("base")
    if base is not None and not _are_names(base):
        raise DataError(f"base in {path.name} must be a list of class names")
    entries = _entries(path, contents.get("classes", []))
    return Classes(path.name, entries, template, base and tuple(map(str, base)))


def read_base(path: Path) -> tuple[str, ...]:
    """A list of base classes: one name a line."""
    names = tuple(read_lines(path))
    if not names:
        raise DataError(f"{path} is empty; expected the name of a base class on every line")
    return names


def with_base(listing: T, names: tuple[str, ...], where: str) -> T:
    """A listing or dataset with these classes as base, the others as novel."""
    labels = {name: label for label, name in enumerate(listing.class_names)}
    for name in names:
        if name not in labels:
            raise unknown(f"base class in {where}:", name, labels)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{where} lists base class {twice[0]!r} twice")
    several = next((name for name in names if listing.class_names.count(name) > 1), None)
    if several is not None:
        raise DataError(f"{where} lists base class {several!r}, and {listing.name} has several classes of that name")
    return replace(listing, base=tuple(sorted(labels[name] for name in names)))


def _class_folders(listing: Listing) -> dict[str, int]:
    """Folder -> label, if the images of every class lie in folders of its own."""
    labels: dict[str, set[int]] = {}
    for rows in listing.rows.values():
        for path, label in rows:
            labels.setdefault(path.rpartition("/")[0].rpartition("/")[2], set()).add(label)
    shared = any(len(several) > 1 for several in labels.values())
    return {} if shared else {folder: next(iter(own)) for folder, own in labels.items()}


def _refuse_repeated(where: str, what: str, values: Sequence[str], different: int) -> None:
    if different < len(values):
        twice = sorted({value for value in values if values.count(value) > 1})
        raise DataError(f"{where} has the {what} {twice[0]!r} twice")


def _line(line: str) -> tuple[str | None, str]:
    for mark in ("\t", "=>", "="):
        folder, found, name = line.partition(mark)
        if found and folder.strip() and name.strip():
            return folder.strip(), name.strip()
    return None, line.strip()


def _entries(path: Path, names: Any) -> tuple[tuple[str | None, str], ...]:
    if isinstance(names, dict) and _are_names(list(names)) and _are_names(list(names.values())):
        return tuple((str(folder), str(name)) for folder, name in names.items())
    if isinstance(names, list) and _are_names(names, some=False):
        return tuple((None, str(name)) for name in names)
    raise DataError(f"classes in {path.name} must be a list of names, or {{folder: name}}")


def _are_names(values: Any, *, some: bool = True) -> bool:
    fit = isinstance(values, list) and all(
        isinstance(value, (str, int)) and not isinstance(value, bool) and str(value).strip() for value in values
    )
    return fit and (bool(values) or not some)
