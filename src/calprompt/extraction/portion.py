"""A portion of an extraction: some images of a split, under one backbone. The task of an executor."""

from __future__ import annotations

from dataclasses import dataclass

from calprompt.extraction.settings import ExtractionSettings


@dataclass(frozen=True)
class Portion:
    """Some images whose features are wanted, as plain data.

    Attributes:
        settings: Of the whole extraction.
        backbone: One of its backbones.
        split: One of its splits.
        start: The number of the first image.
        stop: The number after the last one.
        names: Digest of the names of all images in the split, which must be the same where the work is done.
        store: Folder of the feature store.
        marker: A file in that folder by which a worker elsewhere tells whether it sees it.
        send_back: Send features back, whether a worker sees the folder or not.
    """

    settings: ExtractionSettings
    backbone: str
    split: str
    start: int
    stop: int
    names: str
    store: str
    marker: str = ""
    send_back: bool = False

    @property
    def key(self) -> str:
        """Backbone, split and first image."""
        return f"{self.backbone} {self.split} {self.start}"

    @property
    def title(self) -> str:
        """What it is, in a line."""
        return f"{self.backbone}, {self.split}, images {self.start + 1} to {self.stop}"

    @property
    def views(self) -> int:
        """Random views of every image, besides the one for evaluation."""
        return self.settings.views if self.split == "train" else 0

    @property
    def features(self) -> int:
        """How many features it has."""
        return (self.stop - self.start) * (self.views + 1)
