"""The datasets of the field by name: `available()`, `get(name)`, and what reads, checks and prepares them.

A name may be the key (oxford_pets), the public one (OxfordPets) or a common one (pets), with "-" or "_", in any case.
datasets.yaml describes the datasets of the field; those in the package itself describe themselves (`calprompt.pocket`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from calprompt import pocket
from calprompt.data.catalogue import prepare
from calprompt.data.catalogue.layouts import OWN_SPLIT, AircraftLists, ClassFolders, Layout, Place, SplitFile
from calprompt.data.dataset import SPLITS, TABLES, Listing
from calprompt.errors import CalpromptError, DataError
from calprompt.registry import unknown
from calprompt.text import bullets, shorten
from calprompt.text import nearest as nearest_name

if TYPE_CHECKING:
    from calprompt.progress import Progress

SEE_PAGE = "see the dataset's page"


@dataclass(frozen=True)
class Counts:
    """Expected numbers of classes and of images by split; None where a number is not known.

    `base` is the number of base classes: the first half, rounded up, unless given; 0 if there are no base and novel
    classes, or they depend on ImageNet's.
    """

    classes: int
    train: int | None = None
    val: int | None = None
    test: int | None = None
    base_test: int | None = None
    novel_test: int | None = None
    base: int | None = None

    @property
    def cut(self) -> tuple[int, int] | None:
        """How many classes are base and novel, if that is fixed."""
        base = -(-self.classes // 2) if self.base is None else self.base
        return (base, self.classes - base) if base else None


@dataclass(frozen=True)
class Entry:
    """A dataset of the catalogue."""

    key: str  # its name in commands and results
    title: str  # its full name
    public: str  # its name in public prompt-tuning code
    folders: tuple[str, ...]  # possible names of its folder; case, "-" and "_" do not matter
    layout: Layout  # reads the folder
    templates: Mapping[str, str]  # published sentences for its classes, by table
    counts: Counts  # expected numbers of classes and images
    source: str  # where to get it
    licence: str = SEE_PAGE  # licence of its images
    names: tuple[str, ...] = ()  # further names of it
    inner: tuple[str, ...] = ()  # folders inside its folder which may contain it instead
    # a regular expression that finds in the name of an image what it is of, such as a slide
    group_by: str | None = None
    # folders that `prepare` starts from, by which the dataset is found before anything is prepared
    sources: tuple[str, ...] = ()
    # makes files that can be derived in its folder; returns lines about what it made
    prepare: Callable[[Entry, Path, Progress], list[str]] | None = None
    prepares: str = ""  # what `prepare` makes, in words
    embedded: Callable[[], Path] | None = None  # makes its folder from files of the package; returns where it is

    def locate(self, root: Path) -> Path:
        """The dataset's folder."""
        if not root.is_dir():
            raise DataError(f"there is no folder {root}; expected the one that has the datasets")
        names = [plain(name) for name in self.folders]
        folders = [path for path in root.iterdir() if path.is_dir() and plain(path.name) in names]
        folders.sort(key=lambda path: (names.index(plain(path.name)), path.name))
        candidates = [folder / inner for folder in (*folders, root) for inner in ("", *self.inner)]
        complete = [folder for folder in candidates if folder.is_dir() and not self.layout.missing(folder, self.key)]
        raw = [folder for folder in candidates if any((folder / name).is_dir() for name in self.sources)]
        if complete or raw or folders:
            return (complete or raw or folders)[0]
        if plain(root.name) in (*names, *map(plain, self.inner)):
            return root
        inside = f", with {' or '.join(f'{name}/' for name in self.sources)} in it" if self.sources else ""
        raise DataError(f"{root} has no folder of {self.title}; expected {' or '.join(self.folders)}{inside}")

    def find(self, root: Path | None) -> Path:
        """The dataset's folder: in the folder of all datasets, or made from the package if `root` is None."""
        if root is not None:
            return self.locate(root)
        if self.embedded is not None:
            return self.embedded()
        raise DataError(f"{self.key} is a dataset of the catalogue; say where datasets are with root (--root DIR)")

    def listing(self, folder: Path) -> Listing:
        """Class names and images of the dataset in this folder, without a check of the expected counts."""
        missing = self.layout.missing(folder, self.key)
        if missing:
            raise DataError(f"{self.title} is not complete:{bullets(missing)}")
        listing = self.layout.read(folder)
        name = f"{self.key}-{listing.name}" if listing.name else self.key
        return replace(
            listing, name=name, template=self.templates["coop"], templates=self.templates, group_by=self.group_by
        )


def plain(name: str) -> str:
    """A name in lower case without hyphens, underscores and blanks, which people write differently.

    >>> plain("Food-101") == plain("food_101") == plain("food101")
    True
    """
    return re.sub(r"[-_ ]", "", name.lower())


UNPACK = "Unpack the images again, or point to the folder that has them"


@dataclass
class Report:
    """The result of a check: folder and counts, things to know, and what is wrong, each with what to do about it."""

    title: str
    facts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


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
        listing = entry.listing(folder)
    except CalpromptError as error:
        report.problems.append(str(error))
        return report
    if listing.name == f"{entry.key}-{OWN_SPLIT}":
        report.notes.append("the split is one of your own: do not compare with published numbers")
    place = entry.layout.place(folder) if isinstance(entry.layout, ClassFolders) else None
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
    """Names of counts, actual numbers, and expected numbers."""
    counts, count = entry.counts, len(listing.class_names)
    base = set(listing.base if listing.base is not None else range(-(-count // 2)))
    tested = Counter("base" if label in base else "novel" for _, label in listing.rows.get("test", ()))
    return [
        ("classes", count, counts.classes),
        *((f"{kind} images", len(listing.rows.get(kind, ())), getattr(counts, kind)) for kind in SPLITS),
        ("base test images", tested["base"], counts.base_test),
        ("novel test images", tested["novel"], counts.novel_test),
    ]


LAYOUTS: dict[str, type[Any]] = {
    "aircraft lists": AircraftLists,
    "class folders": ClassFolders,
    "split file": SplitFile,
}
PREPARING = (
    prepare.own_split,
    prepare.imagenet_names,
    prepare.variants_list,
    prepare.ucf101_frames,
    prepare.pannuke_patches,
    prepare.digestpath_patches,
)
PREPARES_SPLIT = "a split of your own from the dataset's annotations, where the fixed one is missing"


def _templates(coop: str, **others: str) -> dict[str, str]:
    """The sentence of every table: that of CoOp where a table has no other."""
    return {table: others.get(table, coop) for table in TABLES}


def _frozen(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _layout(values: dict[str, Any]) -> Layout:
    kind, options = LAYOUTS[values["kind"]], _frozen({name: value for name, value in values.items() if name != "kind"})
    if "split" in options:
        own = {name: options.pop(name) for name in ("ignored", "renamed") if name in options}
        options["split"] = partial(getattr(prepare, options["split"]), **own)
    if "places" in options:
        options["places"] = tuple(Place(**place) for place in options["places"])
    layout: Layout = kind(**options)
    return layout


def _read() -> Iterator[Entry]:
    by_name = {function.__name__: function for function in PREPARING}
    text = Path(__file__).with_name("datasets.yaml").read_text(encoding="utf-8")
    for key, values in yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)).items():
        made: dict[str, Any] = {
            "layout": _layout(values.pop("layout")),
            "templates": _templates(**values.pop("templates")),
            "counts": Counts(**values.pop("counts")),
            "prepare": by_name.get(values.pop("prepare", None)),
        }
        if made["prepare"] is prepare.own_split:
            made["prepares"] = PREPARES_SPLIT
        yield Entry(key=key, **_frozen(values), **made)


@dataclass(frozen=True)
class EmbeddedFiles:
    """The pictures of an embedded dataset, in the folder that `pocket.folder` makes."""

    name: str  # name of the dataset, without "pocket_"

    @property
    def expects(self) -> str:
        return ", ".join(f"{split}/" for split in pocket.sheet(self.name).record["pictures"])

    def missing(self, folder: Path, key: str) -> list[str]:
        return [
            f"{folder / split}/: not there. Remove {folder}; it is made again"
            for split in pocket.sheet(self.name).record["pictures"]
            if not (folder / split).is_dir()
        ]

    def read(self, folder: Path) -> Listing:
        sheet = pocket.sheet(self.name)
        rows = {split: pocket.rows(self.name, split) for split in SPLITS}
        return Listing("", sheet.class_names, folder, rows, test_only="train" not in sheet.counts)


def _embedded(name: str) -> Entry:
    sheet = pocket.sheet(name)
    classes, per_class = len(sheet.class_names), sheet.record["pictures"]["test"]
    base = 0 if "of" in sheet.record else -(-classes // 2)
    images = {kind: sheet.counts.get(kind, 0) for kind in SPLITS}
    if base:
        images |= {"base_test": per_class * base, "novel_test": per_class * (classes - base)}
    return Entry(
        key=f"pocket_{name}",
        title=f"Pocket {sheet.record['title']}",
        public="Pocket" + name.title().replace("_", ""),
        folders=(f"pocket_{name}",),
        layout=EmbeddedFiles(name),
        templates=_templates(sheet.record["template"]),
        counts=Counts(classes, base=base, **images),
        source="the package itself: nothing has to be fetched",
        licence="see NOTICE in the package: several, by drawing",
        embedded=lambda: pocket.folder(name),
    )


FIELD = tuple(_read())
ENTRIES = (*FIELD, *map(_embedded, pocket.names()))
_BY_NAME = {plain(name): entry for entry in ENTRIES for name in (entry.key, entry.public, *entry.names)}


def available() -> list[str]:
    """Names of all datasets, sorted."""
    return sorted(entry.key for entry in ENTRIES)


def get(name: str) -> Entry:
    if not is_known(name):
        raise unknown("dataset", name, available())
    return _BY_NAME[plain(name)]


def is_known(name: str) -> bool:
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
        if isinstance(layout, ClassFolders) and layout.names is not None and named and layout.place(folder) is not None:
            return entry
    return None
