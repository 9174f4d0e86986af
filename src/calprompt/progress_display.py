"""Progress on standard error, for people: bars on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from calprompt.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

EVERY = 5.0  # seconds between lines of progress where there is no terminal


@contextmanager
def show_progress(quiet: bool = False) -> Iterator[Progress]:
    """Progress on standard error: bars on a terminal, a line every few seconds elsewhere, nothing if `quiet`."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if quiet:
        yield lambda what, done, total, note="": None
    elif console.is_terminal:
        with _bars(console) as progress:
            yield progress
    else:
        yield _Lines(console)


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


class _Lines:
    """Progress as plain lines, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.last = time.monotonic()

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None:
        if time.monotonic() - self.last < EVERY:
            return
        self.last = time.monotonic()
        share = f" ({100 * done / total:.0f} %)" if total else ""
        line = f"{what}: {done} of {total}{share}{', ' if note else ''}{note}"
        self.console.print(line, markup=False, soft_wrap=True)
