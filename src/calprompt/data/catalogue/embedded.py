"""The datasets of the package as entries of the catalogue; see `calprompt.pocket` for what is in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calprompt import pocket
from calprompt.data.catalogue.entry import Counts, Entry
from calprompt.data.listing import SPLITS, Listing, Templates

SOURCE = "the package itself: nothing has to be fetched"
LICENCE = "see NOTICE in the package: several, by drawing"


@dataclass(frozen=True)
class EmbeddedFiles:
    """The pictures of an embedded dataset, in the folder that `pocket.folder` makes.

    Attributes:
        name: Name of the dataset, without "pocket_".
    """

    name: str

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
        return Listing("", folder, sheet.class_names, rows, test_only="train" not in sheet.counts)


def _entry(name: str) -> Entry:
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
        source=SOURCE,
        licence=LICENCE,
        embedded=lambda: pocket.folder(name),
    )


EMBEDDED = tuple(_entry(name) for name in pocket.names())
