"""The datasets of the field by name: `available()`, `get(name)`, and what reads, checks and prepares them.

A name may be the key (oxford_pets), the public one (OxfordPets) or a common one (pets), with "-" or "_", in any case.
datasets.yaml describes the datasets of the field; those in the package itself describe themselves (`calprompt.pocket`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from calprompt import pocket
from calprompt.data.catalogue import histology, prepare
from calprompt.data.catalogue.entry import Counts, Entry, Report, check, plain
from calprompt.data.catalogue.layouts import (
    AircraftLists,
    ImageNetFolders,
    Layout,
    NamedFolders,
    Place,
    SplitFile,
    VariantFolders,
)
from calprompt.data.dataset import SPLITS, Listing, Templates
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

LAYOUTS: dict[str, type[Any]] = {
    "aircraft lists": AircraftLists,
    "imagenet folders": ImageNetFolders,
    "named folders": NamedFolders,
    "split file": SplitFile,
    "variant folders": VariantFolders,
}
PREPARING = (
    prepare.own_split,
    prepare.imagenet_names,
    prepare.variants_list,
    prepare.ucf101_frames,
    histology.pannuke_patches,
    histology.digestpath_patches,
)
PREPARES_SPLIT = "a split of your own from the dataset's annotations, where the fixed one is missing"


def _frozen(values: dict[str, Any]) -> dict[str, Any]:
    """With tuples for lists."""
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
    """The entries in datasets.yaml."""
    by_name = {function.__name__: function for function in PREPARING}
    text = Path(__file__).with_name("datasets.yaml").read_text(encoding="utf-8")
    for key, values in yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)).items():
        made: dict[str, Any] = {
            "layout": _layout(values.pop("layout")),
            "templates": Templates.of(**values.pop("templates")),
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
    counts = sheet.counts
    classes = len(sheet.class_names)
    per_class = sheet.record["pictures"]["test"]
    base = 0 if "of" in sheet.record else -(-classes // 2)
    return Entry(
        key=f"pocket_{name}",
        title=f"Pocket {sheet.record['title']}",
        public="Pocket" + name.title().replace("_", ""),
        folders=(f"pocket_{name}",),
        layout=EmbeddedFiles(name),
        templates=Templates.of(sheet.record["template"]),
        counts=Counts(
            classes,
            counts.get("train", 0),
            counts.get("val", 0),
            counts["test"],
            per_class * base if base else None,
            per_class * (classes - base) if base else None,
            base,
        ),
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
