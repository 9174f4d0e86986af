"""Progress of long work: bars on a terminal or in a notebook, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID


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
            stored = f"{self.found} of {self.total} from the store" if self.stored else ""
            note = rate_note(self.computed, self.seconds, self.total - done, stored)
            self.progress(self.what, done, self.total, note)


def rate_note(done: int, seconds: float, left: int | None, more: str = "") -> str:
    """Rate and time left of work on images.

    >>> rate_note(50, 10, 3000), rate_note(500, 10, None)
    ('5.0 images/s, 10 min left', '50 images/s')
    """
    notes = [more] if more else []
    if done:
        rate = done / max(seconds, 1e-9)
        notes.insert(0, f"{rate:.0f} images/s" if rate >= 10 else f"{rate:.1f} images/s")
        if left:
            wait = left / rate
            notes.append(f"{wait:.0f} s left" if wait < 100 else f"{wait / 60:.0f} min left")
    return ", ".join(notes)


LINE_SECONDS = 5.0  # seconds between lines of progress where there is no terminal


@contextmanager
def show_progress(quiet: bool = False) -> Iterator[Progress]:
    """Progress on standard error: bars on a terminal, a line every few seconds elsewhere, nothing if `quiet`."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if quiet:
        yield silent
    elif console.is_terminal or (console.is_jupyter and find_spec("ipywidgets")):
        with _bars(console) as progress:
            yield progress
    else:
        yield _lines(console)


@contextmanager
def _bars(console: Console) -> Iterator[Progress]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, TextColumn("{task.fields[note]}"), console=console) as bars:

        def report(what: str, done: int, total: int, note: str = "") -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total, note="")
            bars.update(tasks[what], completed=done, total=total, note=note)

        yield report


def _lines(console: Console) -> Progress:
    """Progress as plain lines, for logs and pipes."""
    last = time.monotonic()

    def report(what: str, done: int, total: int, note: str = "") -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_SECONDS:
            last = time.monotonic()
            share = f" ({100 * done / total:.0f} %)" if total else ""
            line = f"{what}: {done} of {total}{share}{', ' if note else ''}{note}"
            console.print(line, markup=False, soft_wrap=True)

    return report
