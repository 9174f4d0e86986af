"""Runs of workers that do not see the folder of the sweep: made in a folder of their own, and sent back as files.

What is not finished stays in the worker's cache, so that it continues when the same run comes back to that machine.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

from calprompt.cache import cache_folder
from calprompt.executors.shared_folder import is_shared, pack_folder, unpack_folder
from calprompt.sweep.executors import BUSY, Outcome, Task
from calprompt.sweep.work import work

KIND = "remote-runs"  # of what is kept in the cache
PATIENCE = 60.0  # seconds in which another worker of the machine has to let go of a run


@dataclass(frozen=True)
class RunFiles:
    """A run folder on its way.

    Attributes:
        name: Of the folder.
        files: What is in it, by paths.
    """

    name: str
    files: dict[str, bytes]


def work_anywhere(task: Task) -> Outcome[Task]:
    """Do a task where its folder may not be visible; if it is not, the outcome has the files of the run."""
    if not task.send_back and (not task.marker or is_shared(task.marker)):
        return work(task)
    scratch = cache_folder(KIND) / hashlib.sha256(str(Path(task.marker).parent).encode()).hexdigest()[:16]
    end = time.monotonic() + PATIENCE
    while (outcome := work(replace(task, out=str(scratch)))).status == BUSY and time.monotonic() < end:
        time.sleep(1.0)
    if outcome.folder is None or outcome.status == BUSY:
        return replace(outcome, task=task, folder=None)
    sent = RunFiles(outcome.folder.name, pack_folder(outcome.folder))
    shutil.rmtree(outcome.folder, ignore_errors=True)
    return replace(outcome, task=task, folder=None, result=sent if sent.files else None)


def receive(outcome: Outcome[Task]) -> Outcome[Task]:
    """Write the run that an outcome brings into the folder of the sweep."""
    if not isinstance(outcome.result, RunFiles):
        return outcome
    folder = Path(outcome.task.out) / outcome.result.name
    unpack_folder(outcome.result.files, folder)
    return replace(outcome, folder=folder, result=None)
