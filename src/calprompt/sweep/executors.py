"""A run of a sweep as a task of an executor; `calprompt.executors` has the executors and what comes out of them."""

from __future__ import annotations

from dataclasses import dataclass

from calprompt.executors.protocol import BUSY, Executor, Outcome, Work
from calprompt.runs.config import Target
from calprompt.sweep.expansion import Cell

__all__ = ["BUSY", "Executor", "Outcome", "Task", "Work"]


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
        marker: A file in `out` by which a worker elsewhere tells whether it sees that folder; see `sending`.
        send_back: Send the folder of the run back, whether a worker sees `out` or not.
    """

    cell: Cell
    out: str
    transfer: tuple[Target, ...] = ()
    calibrators: tuple[str, ...] = ()
    store: bool = True
    verify: bool = False
    marker: str = ""
    send_back: bool = False

    @property
    def key(self) -> str:
        """Digest of its settings."""
        return self.cell.key

    @property
    def title(self) -> str:
        """What is particular of it, in a line."""
        return self.cell.title
