"""What an executor is: the protocol, the tasks that go in and the outcomes that come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

FINISHED, FAILED = "finished", "failed"
BUSY = "busy"  # another process is working on it


class Task(Protocol):
    """Something to do, as plain data and paths that any process can read."""

    @property
    def key(self) -> str:
        """What it is told apart by."""
        ...

    @property
    def title(self) -> str:
        """What it is, in a line for people."""
        ...


T = TypeVar("T", bound=Task)


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What became of a task.

    Attributes:
        task: What was to be done.
        status: finished, failed, or busy.
        folder: Of the result, if it got that far.
        reason: Why it failed.
        seconds: That it took.
        reused: Whether everything was there already.
        warnings: What the user should know.
        result: What else the work gives back, as plain data.
    """

    task: T
    status: str
    folder: Path | None = None
    reason: str | None = None
    seconds: float = 0.0
    reused: bool = False
    warnings: tuple[str, ...] = ()
    result: Any = None

    @property
    def is_finished(self) -> bool:
        """Whether the result is there and complete."""
        return self.status == FINISHED


Work = Callable[[T], Outcome[T]]


class Executor(Protocol):
    """What does groups of tasks, here or elsewhere."""

    def map(self, groups: Sequence[Sequence[T]], work: Work[T]) -> Iterator[Outcome[T]]:
        """Do all tasks, and give each outcome as soon as there is one.

        Args:
            groups: Tasks that share what is loaded; a group is best done by one process, in its order.
            work: Does a task; a function of a module, so that other processes can import it.
        """
        ...
