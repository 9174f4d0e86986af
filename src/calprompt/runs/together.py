"""Several runs in one process, trained in one pass where they can be; each ends as it would alone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from calprompt.progress import silent
from calprompt.runs.config import RunConfig
from calprompt.runs.execute import RunSteps, after_training, run_steps
from calprompt.runs.folder import Run
from calprompt.runs.planning import RunPlan
from calprompt.runs.resources import Resources
from calprompt.side_by_side import are_stackable, train_side_by_side
from calprompt.training import TrainingJob


def run_together(
    configs: Sequence[RunConfig | RunPlan], out: str | Path = "runs", *, resources: Resources, exact: bool = True
) -> list[Run | Exception]:
    """Train and evaluate several runs, each into a folder of its own, as `calprompt.run` does with one.

    Args:
        configs: Their settings or plans.
        out: Their folders go into this one.
        resources: Backbones, datasets and features that they share.
        exact: Train in one pass only where that gives the same bits as one run after another.

    Returns:
        For each of them the finished run, or why it failed.
    """
    results: dict[int, Run | Exception] = {}
    paused: dict[int, tuple[RunSteps, TrainingJob]] = {}
    try:
        for place, config in enumerate(configs):
            steps = run_steps(config, out, resources, silent)
            try:
                paused[place] = steps, next(steps)
            except StopIteration as end:
                results[place] = end.value
            except Exception as error:
                results[place] = error
        while paused:
            first = next(iter(paused))
            beside = [place for place in paused if place == first or are_stackable(paused[first][1], paused[place][1])]
            results |= _train({place: paused.pop(place) for place in beside}, exact)
    except BaseException as error:  # such as an interrupt: every run lets go of its folder
        for steps, _ in paused.values():
            _fail(steps, error)
        raise
    return [results[place] for place in range(len(configs))]


def _train(paused: Mapping[int, tuple[RunSteps, TrainingJob]], exact: bool) -> dict[int, Run | Exception]:
    """Train some runs in one pass, and take each of them to its end."""
    jobs = [job for _, job in paused.values()]
    start = time.perf_counter()
    errors: list[Exception | None] = [None] * len(jobs)
    try:
        with jobs[0].tuner.backbone.limited_threads():
            if len(jobs) > 1:
                for job in jobs:
                    job.stopwatch.runs = len(jobs)
                errors = train_side_by_side(jobs, exact=exact)
            else:
                jobs[0].train()
    except Exception as error:
        errors = [error] * len(jobs)
    except BaseException as error:
        for steps, _ in paused.values():
            _fail(steps, error)
        raise
    seconds = (time.perf_counter() - start) / len(jobs)
    results: dict[int, Run | Exception] = {}
    for (place, (steps, _)), problem in zip(paused.items(), errors, strict=True):
        try:
            results[place] = after_training(steps, seconds) if problem is None else _fail(steps, problem)
        except Exception as failure:
            results[place] = failure
    return results


def _fail(steps: RunSteps, error: BaseException) -> Exception:
    """Tell a run that its training went wrong, so that it notes why and lets go of its folder."""
    try:
        steps.throw(error)
    except Exception as raised:
        return raised
    except BaseException:  # whoever threw it raises it again
        pass
    return RuntimeError(f"a run went on after {error!r}")
