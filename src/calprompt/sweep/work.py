"""What a worker does with a task: train, evaluate on other data, measure under calibrators.

Runs of a group find their backbone, dataset and features loaded, because the process keeps them until a task of another
group comes. torch is imported with the first task, so that whoever hands out the tasks does without.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from pathlib import Path

from calprompt.errors import BusyError, CalpromptError
from calprompt.runs.resources import Resources
from calprompt.sweep.executors import BUSY, Outcome, Task
from calprompt.sweep.folders import FAILED, FINISHED, missing_transfers
from calprompt.sweep.measuring import measure_run
from calprompt.sweep.ordering import group_key
from calprompt.text import os_problem

_loaded: dict[str, Resources] = {}  # of the group that this process is at


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
    from calprompt.runs.execute import run
    from calprompt.runs.planning import plan
    from calprompt.runs.recipes import build_config
    from calprompt.runs.restoring import restore
    from calprompt.runs.transfer import evaluate_on

    folder: Path | None = None
    try:
        resources = _resources(task)
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


def _resources(task: Task) -> Resources:
    from calprompt.features.store import FeatureStore

    key = f"{group_key(task.cell)} {task.store}"
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = Resources(store=FeatureStore() if task.store else None)
    return _loaded[key]
