"""What runs the groups of a sweep: the protocol that executors follow, and the data that goes in and comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from calprompt.runs.target import Target
from calprompt.sweep.expansion import Cell
from calprompt.sweep.folders import FINISHED

BUSY = "busy"  # another process is working on the run


@dataclass(frozen=True)
class Task:
    """A run to do, as plain data and paths.

    Attributes:
        cell: Its settings.
        out: Folder of the runs.
        transfer: What to evaluate it on.
        calibrators: What to measure it with.
        store: Whether image features are kept on disk for other processes.
        verify: Whether evaluations on other data that are there are looked at again.
    """

    cell: Cell
    out: str
    transfer: tuple[Target, ...] = ()
    calibrators: tuple[str, ...] = ()
    store: bool = True
    verify: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    Attributes:
        task: What was to be done.
        status: finished, failed, or busy.
        folder: Of the run, if it got that far.
        reason: Why it failed.
        seconds: That it took.
        reused: Whether everything was there already.
        warnings: What the user should know.
    """

    task: Task
    status: str
    folder: Path | None = None
    reason: str | None = None
    seconds: float = 0.0
    reused: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def is_finished(self) -> bool:
        """Whether the run is there and complete."""
        return self.status == FINISHED


Work = Callable[[Task], Outcome]


class Executor(Protocol):
    """What runs the groups of a sweep, here or elsewhere."""

    def map(self, groups: Sequence[Sequence[Task]], work: Work) -> Iterator[Outcome]:
        """Do all tasks, and give each outcome as soon as there is one.

        Args:
            groups: Tasks that share what is loaded; a group is best done by one process, in its order.
            work: Does a task; a function of a module, so that other processes can import it.
        """
        ...
