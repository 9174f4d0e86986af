"""How long work reports where it is."""

from __future__ import annotations

import time
from typing import Protocol


class Progress(Protocol):
    """Called again and again while something takes time."""

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None:
        """Report progress."""
        ...


def silent(what: str, done: int, total: int, note: str = "") -> None:
    """A `Progress` that shows nothing."""


class FeatureProgress:
    """Progress of image features, some of them found in the store and the others computed."""

    def __init__(self, what: str, total: int, progress: Progress, *, stored: bool) -> None:
        self.what, self.total, self.progress, self.stored = what, total, progress, stored
        self.found = self.computed = self.failed = 0
        self.start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the beginning; reading what is in the store takes next to nothing of it."""
        return time.perf_counter() - self.start

    def add(self, *, found: int = 0, computed: int = 0, failed: int = 0) -> None:
        """Count some more features and report."""
        self.found, self.computed, self.failed = self.found + found, self.computed + computed, self.failed + failed
        if found or computed or failed:
            done = self.found + self.computed + self.failed
            self.progress(self.what, done, self.total, self._note(self.total - done))

    def _note(self, left: int) -> str:
        notes = []
        if self.computed:
            rate = self.computed / self.seconds
            notes.append(f"{rate:.0f} images/s" if rate >= 10 else f"{rate:.1f} images/s")
        if self.stored:
            notes.append(f"{self.found} of {self.total} from the store")
        if self.computed and left:
            notes.append(f"{left / rate:.0f} s left")
        return ", ".join(notes)
