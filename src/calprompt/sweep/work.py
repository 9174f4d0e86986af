"""Runs of a sweep as tasks: their order, what a worker does with one, and how a run comes back from another machine.

    cells ── same backbone, dataset ──▶ groups ── by the features they train on ──▶ one worker each
                                          └── fewer groups than workers? the largest is halved

A worker trains, evaluates on other data and measures under calibrators. Runs of a group find their backbone, dataset
and features loaded, because the process keeps them until a task of another group comes. torch is imported with the
first task, so that whoever hands out the tasks does without. A worker that does not see the folder of the sweep makes
runs in a folder of its own and sends them back as files; what is not finished stays in its cache, so that it
continues when the same run comes back to that machine.
"""

from __future__ import annotations

import hashlib
import shutil
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from calprompt.cache import cache_folder
from calprompt.errors import BusyError, CalpromptError
from calprompt.executors.protocol import BUSY, Outcome, is_shared, pack_folder, unpack_folder
from calprompt.runs.config import Target
from calprompt.runs.resources import group_resources
from calprompt.sweep.expansion import Cell
from calprompt.sweep.folders import FAILED, FINISHED, measure_run, missing_transfers
from calprompt.text import os_problem


@dataclass(frozen=True)
class Task:
    """A run to do, as plain data and paths."""

    cell: Cell  # its settings
    out: str  # folder of the runs
    transfer: tuple[Target, ...] = ()  # what to evaluate it on
    calibrators: tuple[str, ...] = ()  # what to measure it with
    store: bool = True  # whether image features are kept on disk for other processes
    verify: bool = False  # whether evaluations on other data that are there are looked at again
    # a file in `out` by which a worker elsewhere tells whether it sees that folder; see `work_anywhere`
    marker: str = ""
    send_back: bool = False  # send the folder of the run back, whether a worker sees `out` or not

    @property
    def key(self) -> str:
        """Digest of its settings."""
        return self.cell.key

    @property
    def title(self) -> str:
        """What is particular of it, in a line."""
        return self.cell.title


GROUP_SETTINGS = (
    "backbone",
    "backbone_config",
    "dtype",
    "device",
    "data",
    "root",
    "classes",
    "base",
    "exif",
    "skip_bad",
)
FEATURE_SETTINGS = ("protocol", "shots", "seed", "crop", "views")  # of runs that train on the same features


class HasCell(Protocol):
    """Anything that is about a cell."""

    @property
    def cell(self) -> Cell:
        """The cell."""
        ...


T = TypeVar("T", bound=HasCell)


def arrange(items: Sequence[T], workers: int) -> list[list[T]]:
    """Groups of what one worker does after another, the largest first, and at least as many as workers if possible."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(_values(item.cell, GROUP_SETTINGS), []).append(item)
    ordered = [sorted(group, key=lambda item: _values(item.cell, FEATURE_SETTINGS)) for group in groups.values()]
    while len(ordered) < workers:
        largest = max(ordered, key=len, default=[])
        if len(largest) < 2:
            break
        place, half = ordered.index(largest), (len(largest) + 1) // 2
        ordered[place : place + 1] = [largest[:half], largest[half:]]
    return sorted(ordered, key=len, reverse=True)


def group_key(cell: Cell) -> str:
    """What runs of a group have in common."""
    return _values(cell, GROUP_SETTINGS)


def _values(cell: Cell, names: Sequence[str]) -> str:
    def value(name: str) -> Any:
        return cell.record["training"][name] if name == "seed" else cell.record.get(name)

    return repr([value(name) for name in names])


def work(task: Task) -> Outcome:
    """Do a task; what goes wrong is its outcome."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        outcome = _outcome(task)
    messages = [str(each.message) for each in caught if issubclass(each.category, UserWarning)]
    seconds = round(time.perf_counter() - start, 3)
    return replace(outcome, seconds=seconds, warnings=tuple(dict.fromkeys(messages)))


def _outcome(task: Task) -> Outcome:
    from calprompt.features.store import FeatureStore
    from calprompt.runs.config import build_config
    from calprompt.runs.execute import run
    from calprompt.runs.planning import plan
    from calprompt.runs.restoring import restore
    from calprompt.runs.transfer import evaluate_on

    folder: Path | None = None
    try:
        key = f"{group_key(task.cell)} {task.store}"
        resources = group_resources(key, lambda: FeatureStore() if task.store else None)
        planned = plan(build_config(**dict(task.cell.settings)), resources=resources)
        folder = planned.locate(task.out)
        done = run(planned, task.out, resources=resources)
        targets = list(task.transfer) if task.verify else missing_transfers(folder, task.transfer)
        if targets:
            restored = restore(folder, resources=resources)
            for target in targets:
                evaluate_on(restored, target, resources=resources)
        measure_run(folder, task.calibrators)
    except BusyError as error:
        return Outcome(task, BUSY, folder, reason=str(error))
    except CalpromptError as error:
        return Outcome(task, FAILED, folder, reason=str(error))
    except OSError as error:
        return Outcome(task, FAILED, folder, reason=os_problem(error))
    except Exception as error:  # one run that goes wrong in a way nobody thought of must not stop the others
        return Outcome(task, FAILED, folder, reason=f"{type(error).__name__}: {error}".rstrip(": "))
    return Outcome(task, FINISHED, folder, reused=done.reused and not targets)


KIND = "remote-runs"  # of what is kept in the cache
BUSY_SECONDS = 60.0  # seconds in which another worker of the machine has to let go of a run


@dataclass(frozen=True)
class RunFiles:
    """A run folder on its way."""

    name: str  # name of the folder
    files: dict[str, bytes]  # what is in it, by paths


def work_anywhere(task: Task) -> Outcome[Task]:
    """Do a task where its folder may not be visible; if it is not, the outcome has the files of the run."""
    if not task.send_back and (not task.marker or is_shared(task.marker)):
        return work(task)
    scratch = cache_folder(KIND) / hashlib.sha256(str(Path(task.marker).parent).encode()).hexdigest()[:16]
    end = time.monotonic() + BUSY_SECONDS
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
