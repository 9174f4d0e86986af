"""An extraction at work: hands portions to an executor, and stores what workers elsewhere send back.

The store is the truth: whatever ends this process, the next one finds what is stored and computes the rest.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from calprompt.errors import CalpromptError
from calprompt.executors.local import LocalExecutor
from calprompt.executors.protocol import FAILED, Executor
from calprompt.executors.shared_folder import shared_marker
from calprompt.extraction.plan import ExtractionPlan
from calprompt.extraction.work import PortionReport, SentFeatures, work
from calprompt.features.store import FeatureStore
from calprompt.progress import FeatureProgress, Progress, silent
from calprompt.text import os_problem


@dataclass
class ExtractionState:
    """What came out of an extraction.

    Attributes:
        found: Features that were in the store.
        computed: Features that were computed.
        unreadable: Names of images that cannot be read, and why.
        seconds: That it took.
    """

    found: int = 0
    computed: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def extract(
    plan: ExtractionPlan,
    *,
    workers: int = 1,
    executor: Executor | None = None,
    send_back: bool = False,
    progress: Progress = silent,
) -> ExtractionState:
    """Fill the feature store.

    Args:
        plan: What `plan_extraction` returned.
        workers: Processes of this machine, unless an executor is given.
        executor: What does the portions.
        send_back: Have features sent back by an executor whose workers do not write to the store; those that do not
            see it send them anyway.
        progress: Shows how far it is.

    Returns:
        How much was there and how much was computed.

    Raises:
        CalpromptError: if a portion cannot be done, or the store cannot be written to; what is stored stays there.
    """
    state, begin = ExtractionState(), time.perf_counter()
    meter = FeatureProgress("features", plan.features, progress, stored=True)
    portions = [portion for group in plan.groups for portion in group]
    if not portions:
        return state
    store = FeatureStore(portions[0].store)
    try:
        store.folder.mkdir(parents=True, exist_ok=True)
        marked = nullcontext("") if executor is None else shared_marker(Path(store.folder))
        with marked as marker:
            groups = [[replace(each, marker=marker, send_back=send_back) for each in group] for group in plan.groups]
            outcomes = (executor or LocalExecutor(workers)).map(groups, work)
            try:
                for outcome in outcomes:
                    if outcome.status == FAILED:
                        raise CalpromptError(f"{outcome.task.title}: {outcome.reason}")
                    _take(outcome.result, outcome.task.features, store, state, meter)
            finally:
                getattr(outcomes, "close", lambda: None)()  # ends what a generator has begun, now and not later
    except OSError as error:
        raise CalpromptError(f"cannot write to the feature store {store.folder}: {os_problem(error)}") from error
    finally:
        state.seconds = time.perf_counter() - begin
    return state


def _take(
    report: PortionReport, features: int, store: FeatureStore, state: ExtractionState, meter: FeatureProgress
) -> None:
    if report.sent is not None:
        put(store, report.sent)
    state.found += report.found
    state.computed += report.computed
    state.unreadable |= report.unreadable
    meter.add(found=report.found, computed=report.computed, failed=features - report.found - report.computed)


def put(store: FeatureStore, sent: SentFeatures) -> None:
    """Store features that came from elsewhere, but for those that are there."""
    import torch
    from safetensors.torch import load

    space, rows = store.space(sent.about, sent.name), load(sent.rows)["features"]
    there = set(space.find(sent.keys)[0])
    new = [place for place in range(len(sent.keys)) if place not in there]
    if new:
        space.add([sent.keys[place] for place in new], rows[torch.tensor(new)])
        space.flush()
    if not store.writable:
        raise CalpromptError(f"cannot store features in {store.folder}; is it full, or only to be read?")
