"""What commands print to: standard output for results, standard error for progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from calprompt.data import Progress as Report


def output() -> Console:
    """Standard output, wide enough for a table when it goes to a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


@contextmanager
def progress_bars(quiet: bool) -> Iterator[Report]:
    """Progress bars on standard error; none if it is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(
        *columns, TextColumn("{task.fields[note]}"), console=console, disable=quiet or not console.is_terminal
    ) as bars:

        def report(what: str, done: int, total: int, note: str = "") -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total, note="")
            bars.update(tasks[what], completed=done, total=total, note=note)

        yield report
