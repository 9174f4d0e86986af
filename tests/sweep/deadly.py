"""Work that kills its process, for a test of what comes after. Imports no torch, so that processes start at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from calprompt.executors.protocol import Outcome
from calprompt.sweep.driver import Task
from calprompt.sweep.expansion import Cell


class Lives(Cell):
    """A cell that is told apart by how many processes it kills."""

    key = property(lambda self: f"lives{self.settings['lives']}")  # type: ignore[assignment]


def work(task: Task) -> Outcome:
    """Kills its process, until it did so as often as its setting says; notes every attempt in a file."""
    attempt = len(list(Path(task.out).glob(f"{task.cell.key}-*")))
    (Path(task.out) / f"{task.cell.key}-{attempt}").touch()
    if attempt < int(task.cell.settings["lives"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return Outcome(task, "finished", reason=os.environ["OMP_NUM_THREADS"])
