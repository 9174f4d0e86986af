"""Check of a dataset on disk: all problems at once, each with what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from calprompt.data.catalogue.entry import Entry
from calprompt.data.catalogue.layouts import OWN_SPLIT, NamedFolders, SplitFile
from calprompt.data.listing import SPLITS, Listing
from calprompt.errors import CalpromptError
from calprompt.text import shorten

UNPACK = "Unpack the images again, or point to the folder that has them"


@dataclass
class Report:
    """The result of a check.

    Attributes:
        title: Of the dataset.
        facts: Folder and counts.
        notes: Things to know.
        problems: What is wrong, each with what to do about it.
    """

    title: str
    facts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def check(entry: Entry, root: Path | None) -> Report:
    """Check the folder, files, classes and counts of a dataset, and whether all listed images exist; opens no image."""
    report = Report(entry.title)
    try:
        folder = entry.find(root)
    except CalpromptError as error:
        if root is None:
            raise
        report.problems.append(f"{error}. Get it from {entry.source}")
        return report
    report.facts.append(f"folder {folder}")
    report.problems += entry.layout.missing(folder, entry.key)
    if report.problems:
        return report
    try:
        listing = entry.listing_in(folder)
    except CalpromptError as error:
        report.problems.append(str(error))
        return report
    if listing.name == f"{entry.key}-{OWN_SPLIT}":
        report.notes.append("the split is one of your own: do not compare with published numbers")
    place = entry.layout.place(folder) if isinstance(entry.layout, NamedFolders) else None
    if place is not None and place.note:
        report.notes.append(place.note)
    fixed = isinstance(entry.layout, SplitFile) and listing.name == entry.key
    remedy = "the split file is not the fixed one, get it again" if fixed else "unpack the archives again"
    for what, count, expected in _numbers(entry, listing):
        report.facts.append(f"{what}: {count:,}")
        if expected is not None and count != expected:
            report.problems.append(f"{what}: {count:,}, expected {expected:,}; {remedy}")
    report.problems += absent(listing, f"Remove {folder}; it is made again" if entry.embedded else UNPACK)
    return report


def absent(listing: Listing, remedy: str = UNPACK) -> list[str]:
    """A problem that names the images which are listed but do not exist; empty if all exist."""
    listed = [path for kind in SPLITS for path, _ in listing.rows.get(kind, ())]
    folders = {path.rpartition("/")[0] for path in listed}
    existing = {f"{folder}/{name}".lstrip("/") for folder in folders for name in _names(listing.root / folder)}
    missing = [path for path in listed if path not in existing]
    if not missing:
        return []
    return [f"{len(missing):,} of {len(listed):,} images are not in {listing.root}: {shorten(missing)}. {remedy}"]


def _names(folder: Path) -> Iterable[str]:
    return (path.name for path in folder.iterdir()) if folder.is_dir() else ()


def _numbers(entry: Entry, listing: Listing) -> list[tuple[str, int, int | None]]:
    """What is counted, how many there are, how many are expected."""
    counts, count = entry.counts, len(listing.class_names)
    base = set(listing.base if listing.base is not None else range(-(-count // 2)))
    tested = Counter("base" if label in base else "novel" for _, label in listing.rows.get("test", ()))
    return [
        ("classes", count, counts.classes),
        *((f"{kind} images", len(listing.rows.get(kind, ())), getattr(counts, kind)) for kind in SPLITS),
        ("base test images", tested["base"], counts.base_test),
        ("novel test images", tested["novel"], counts.novel_test),
    ]
