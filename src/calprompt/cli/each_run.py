"""Several runs in one command: one that cannot be used does not keep the others from being worked on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from calprompt.errors import CalpromptError
from calprompt.text import os_problem

T = TypeVar("T")


def each_run(folders: Sequence[str], work: Callable[[Path], T]) -> tuple[list[T], CalpromptError | None]:
    """What `work` gave for every run, and at the end what is to be raised for those it could not be done for."""
    done, wrong = [], []
    places = list(dict.fromkeys(map(Path, folders)))
    for folder in places:
        try:
            done.append(work(folder))
        except CalpromptError as error:
            wrong.append(str(error))
        except OSError as error:
            wrong.append(os_problem(error))
    if not wrong:
        return done, None
    if len(places) == 1:
        return done, CalpromptError(wrong[0])
    reasons = "\n  ".join(dict.fromkeys(wrong))
    return done, CalpromptError(f"{len(wrong)} of {len(places)} runs were left out:\n  {reasons}")
