"""A sweep at work: hands runs to an executor, waits for those that others are working on, and notes what failed.

The run folders are the truth. Whatever ends this process, the next one finds finished runs and continues the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, Parameter
from calprompt.executors.local import LocalExecutor
from calprompt.executors.protocol import BUSY, Executor, Outcome, shared_marker
from calprompt.files import is_locked
from calprompt.sweep.folders import FAILED
from calprompt.sweep.sweep_plan import Journal, SweepPlan
from calprompt.sweep.work import Task, arrange, receive, work_anywhere
from calprompt.text import os_problem

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
        """What failed."""
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
        """That the rest may take, from what it took so far, or else from the estimate."""
        if self.done:
            return self.seconds / len(self.done) * (self.total - len(self.done))
        return None if self.estimate is None else max(0.0, self.estimate - self.seconds)


Watch = Callable[[SweepState, Outcome | None], None]


def _unwatched(state: SweepState, outcome: Outcome | None) -> None:
    """Shows nothing."""


def run_sweep(
    plan: SweepPlan,
    *,
    retry_failed: bool = False,
    verify: bool = False,
    store: bool = True,
    executor: Executor | None = None,
    send_back: bool = False,
    watch: Watch = _unwatched,
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
    """Wait until other processes have let go of some runs; returns what can be done then, and takes it off the list."""
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
