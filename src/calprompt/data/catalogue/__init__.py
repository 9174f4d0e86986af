"""The datasets of the field by name: `available()`, `get(name)`, and what reads, checks and prepares them.

A name may be the key (oxford_pets), the public one (OxfordPets) or a common one (pets), with "-" or "_", in any case.
"""

from __future__ import annotations

from pathlib import Path

from calprompt.data.catalogue.embedded import EMBEDDED
from calprompt.data.catalogue.entries import FIELD
from calprompt.data.catalogue.entry import Counts, Entry, Report, check, plain
from calprompt.data.catalogue.layouts import NamedFolders, SplitFile
from calprompt.data.listing import Templates
from calprompt.registry import unknown
from calprompt.text import nearest as nearest_name

__all__ = [
    "ENTRIES",
    "FIELD",
    "Counts",
    "Entry",
    "Report",
    "Templates",
    "available",
    "check",
    "get",
    "is_known",
    "nearest",
    "recognise",
]

ENTRIES = (*FIELD, *EMBEDDED)
_BY_NAME = {plain(name): entry for entry in ENTRIES for name in (entry.key, entry.public, *entry.names)}


def available() -> list[str]:
    """Names of all datasets, sorted."""
    return sorted(entry.key for entry in ENTRIES)


def get(name: str) -> Entry:
    """The entry of a dataset."""
    if not is_known(name):
        raise unknown("dataset", name, available())
    return _BY_NAME[plain(name)]


def is_known(name: str) -> bool:
    """Whether the catalogue has a dataset of this name."""
    return plain(name) in _BY_NAME


def nearest(name: str) -> str | None:
    """The dataset whose name is most like this one, if any is."""
    near = nearest_name(plain(name), _BY_NAME)
    return _BY_NAME[near].key if near else None


def recognise(folder: Path) -> Entry | None:
    """The dataset in a folder, recognised by its split file, or by its name and the class folders in it."""
    for entry in ENTRIES:
        layout = entry.layout
        if isinstance(layout, SplitFile) and any((folder / name).is_file() for name in (layout.file, layout.own_file)):
            return entry
        named = plain(folder.resolve().name) in map(plain, entry.folders)
        if isinstance(layout, NamedFolders) and named and layout.place(folder) is not None:
            return entry
    return None
