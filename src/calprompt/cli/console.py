"""What commands share: standard output for results, standard error for progress, and several runs in one command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from calprompt.errors import CalpromptError
from calprompt.progress import show_progress
from calprompt.text import os_problem

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["each_run", "output", "say", "show_progress"]

T = TypeVar("T")


def output() -> Console:
    """Standard output, wide enough for a table when it goes to a file."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


def say(*lines: object) -> None:
    """Print lines as they are, on standard output."""
    console = output()
    for line in lines:
        console.print(str(line), markup=False, soft_wrap=True)


def each_run(folders: Sequence[str], work: Callable[[Path], T]) -> tuple[list[T], CalpromptError | None]:
    """The results of `work` for every run, and the error to raise at the end for runs that failed."""
    done: list[T] = []
    wrong: dict[str, object] = {}
    places = list(dict.fromkeys(map(Path, folders)))
    for folder in places:
        try:
            done.append(work(folder))
        except CalpromptError as error:
            wrong[str(error)] = error
        except OSError as error:
            wrong[os_problem(error)] = os_problem(error)
    left_out = len(places) - len(done)
    if not left_out:
        return done, None
    if len(places) == 1:
        return done, CalpromptError(*wrong.values())
    reasons = [piece for reason in wrong.values() for piece in ("\n  ", reason)]
    return done, CalpromptError(f"{left_out} of {len(places)} runs were left out:", *reasons)
