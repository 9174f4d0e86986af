"""A sweep at work: hands runs to an executor, waits for those that others are working on, and notes what failed.

Runs of one backbone and dataset are a group for one worker, ordered by the features they train on; with fewer groups
than workers, the largest is halved. A worker trains, evaluates on other data and measures under calibrators, and keeps
what it has loaded until a task of another group comes. The run folders are the truth: whatever ends this process, the
next one finds finished runs and continues the others. A worker that does not see the folder of the sweep makes runs in
a folder of its own and sends them back as files; what is not finished stays in its cache, to be continued there.
"""

from __future__ import annotations

import hashlib
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from calprompt.errors import BusyError, CalpromptError, Parameter
from calprompt.executors.local import LocalExecutor
from calprompt.executors.protocol import BUSY, Executor, Outcome, is_shared, pack_folder, shared_marker, unpack_folder
from calprompt.files import cache_folder, is_locked
from calprompt.runs.config import Target
from calprompt.runs.resources import group_resources
from calprompt.sweep.expansion import Cell
from calprompt.sweep.sweep_plan import FAILED, FINISHED, Journal, SweepPlan, measure_run, missing_transfers
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
        """The settings that distinguish it, in a line."""
        return self.cell.title


GROUP_SETTINGS = (
    *("backbone", "backbone_config", "dtype", "device"),
    *("data", "root", "classes", "base", "exif", "skip_bad"),
)
FEATURE_SETTINGS = ("protocol", "shots", "seed", "crop", "views")  # of runs that train on the same features


def arrange(tasks: Sequence[Task], workers: int) -> list[list[Task]]:
    """Groups of what one worker does after another, the largest first, and at least as many as workers if possible."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(group_key(task.cell), []).append(task)
    ordered = [sorted(group, key=lambda task: _values(task.cell, FEATURE_SETTINGS)) for group in groups.values()]
    while len(ordered) < workers:
        largest = max(ordered, key=len, default=[])
        if len(largest) < 2:
            break
        place, half = ordered.index(largest), (len(largest) + 1) // 2
        ordered[place : place + 1] = [largest[:half], largest[half:]]
    return sorted(ordered, key=len, reverse=True)


def group_key(cell: Cell) -> str:
    """The settings that runs of a group share, as text."""
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
    except Exception as error:  # an unexpected error of one run must not stop the others
        return Outcome(task, FAILED, folder, reason=f"{type(error).__name__}: {error}".rstrip(": "))
    return Outcome(task, FINISHED, folder, reused=done.reused and not targets)


KIND = "remote-runs"  # of what is kept in the cache
BUSY_SECONDS = 60.0  # seconds to wait for a run that another worker holds


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
    files = pack_folder(outcome.folder)
    shutil.rmtree(outcome.folder, ignore_errors=True)
    return replace(outcome, task=task, folder=None, result=(outcome.folder.name, files) if files else None)


def receive(outcome: Outcome[Task]) -> Outcome[Task]:
    """Write the run that an outcome brings into the folder of the sweep."""
    if outcome.result is None:
        return outcome
    name, files = outcome.result
    folder = Path(outcome.task.out) / name
    unpack_folder(files, folder)
    return replace(outcome, folder=folder, result=None)


POLL_SECONDS = 0.5  # seconds between looks at runs that other processes are working on


@dataclass
class SweepState:
    """How far a sweep is.

    Attributes:
        total: Runs to do.
        estimate: Seconds that they were estimated to take, if that is known.
        done: Outcomes so far, but for busy ones.
        running: Titles of what is being worked on.
        begun: When the work began, by a clock that only goes forward.
    """

    total: int
    estimate: float | None = None
    done: list[Outcome] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    @property
    def failures(self) -> list[Outcome]:
        """Outcomes of failed runs."""
        return [outcome for outcome in self.done if outcome.status == FAILED]

    @property
    def computed(self) -> int:
        """How many runs were computed here, at least in part."""
        return sum(outcome.is_finished and not outcome.reused for outcome in self.done)

    @property
    def seconds(self) -> float:
        """Since the work began."""
        return time.monotonic() - self.begun

    @property
    def seconds_left(self) -> float | None:
        """Remaining seconds, from the pace so far, or else from the estimate."""
        if self.done:
            return self.seconds / len(self.done) * (self.total - len(self.done))
        return None if self.estimate is None else max(0.0, self.estimate - self.seconds)


Watch = Callable[[SweepState, Outcome | None], None]


def run_sweep(
    plan: SweepPlan,
    *,
    retry_failed: bool = False,
    verify: bool = False,
    store: bool = True,
    executor: Executor | None = None,
    send_back: bool = False,
    watch: Watch = lambda state, outcome: None,
) -> SweepState:
    """Do what a sweep has to do.

    Args:
        plan: What `plan_sweep` returned.
        retry_failed: Do runs again that failed before.
        verify: Look at finished runs again: whether their images and files are what they were.
        store: Keep image features on disk for other processes.
        executor: What runs the groups; processes of this machine, unless given.
        send_back: Have the folders of runs sent back by an executor whose workers do not write to `plan.out`; those
            that do not see it send them anyway.
        watch: Called with the state and the latest outcome whenever there is something new.

    Returns:
        How it went; its `failures` have their reasons.

    Raises:
        CalpromptError: if the folder cannot be written to.
    """
    cells = plan.to_do(retry_failed=retry_failed, verify=verify)
    state = SweepState(len(cells), plan.estimate(cells))
    if not cells:
        return state
    sweep = plan.sweep
    task = partial(Task, out=str(plan.out), transfer=sweep.transfer, calibrators=sweep.calibrators)
    tasks = [task(each.cell, store=store, verify=verify, send_back=send_back) for each in cells]

    def started(task: Task) -> None:
        if task.cell.title not in state.running:  # it may have lost its worker
            state.running.append(task.cell.title)
        watch(state, None)

    elsewhere = executor is not None
    executor = executor or LocalExecutor(plan.workers, sweep.threads, sweep.devices)
    if getattr(executor, "on_start", started) is None:
        executor.on_start = started  # type: ignore[attr-defined]
    began = datetime.now(UTC)
    _begin(plan)
    try:
        with shared_marker(plan.out) if elsewhere else nullcontext("") as marker:
            _work([replace(task, marker=marker) for task in tasks], plan, state, executor, watch)
    finally:
        with suppress(OSError):  # such as a full disk: the runs say what they have
            note = {
                "started": began.isoformat(timespec="seconds"),
                "ended": datetime.now(UTC).isoformat(timespec="seconds"),
                "estimated_seconds": None if state.estimate is None else round(state.estimate, 1),
                "seconds": round(state.seconds, 1),
                "workers": plan.workers,
                "runs": state.total,
                "computed": state.computed,
                "failed": len(state.failures),
                "left": state.total - len(state.done),
            }
            _note(plan, state.done, note)
    return state


def _work(tasks: Sequence[Task], plan: SweepPlan, state: SweepState, executor: Executor, watch: Watch) -> None:
    pending, waiting = list(tasks), dict[str, Outcome]()
    while pending or waiting:
        outcomes = executor.map(arrange(pending, plan.workers), work_anywhere)
        try:
            for outcome in map(receive, outcomes):
                with suppress(ValueError):
                    state.running.remove(outcome.task.cell.title)
                if outcome.status == BUSY:
                    waiting[outcome.task.cell.key] = outcome
                    continue
                state.done.append(outcome)
                if outcome.status == FAILED:
                    with suppress(OSError):
                        _note(plan, [outcome])
                watch(state, outcome)
        finally:
            getattr(outcomes, "close", lambda: None)()  # ends what a generator has begun, now and not some time later
        pending = _freed(waiting)


def _freed(waiting: dict[str, Outcome]) -> list[Task]:
    """Wait until other processes have released some runs; removes their tasks from `waiting` and returns them."""
    while waiting:
        free = [key for key, outcome in waiting.items() if outcome.folder is None or not is_locked(outcome.folder)]
        if free:
            return [waiting.pop(key).task for key in free]
        time.sleep(POLL_SECONDS)
    return []


def _begin(plan: SweepPlan) -> None:
    """Make the folder, and note what belongs to the sweep."""
    try:
        plan.out.mkdir(parents=True, exist_ok=True)
        _note(plan, [])
    except OSError as error:
        raise CalpromptError(
            f"cannot write to the folder {plan.out}: {os_problem(error)}; choose another place with ",
            Parameter("out", "FOLDER"),
        ) from error


def _note(plan: SweepPlan, outcomes: Sequence[Outcome], work_done: dict[str, Any] | None = None) -> None:
    """Write down what failed, and what does not fail any more; other processes may have written meanwhile."""
    journal = Journal.of(plan.sweep, Path(plan.out))
    for outcome in outcomes:
        if outcome.status == FAILED:
            journal.failures[outcome.task.cell.key] = outcome.reason or "for no reason that was said"
        else:
            journal.failures.pop(outcome.task.cell.key, None)
    if work_done is not None:
        journal.passes.append(work_done)
    journal.write(plan.out)
