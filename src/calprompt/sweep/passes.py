"""Runs that a worker trains in one pass: those that differ in nothing but seed, loss, learning rate and the like.

group  coop ce 1, coop ce 2, maple ce 1, coop tcpt 1, …
         └── pass: coop ce 1 + coop ce 2 + coop tcpt 1, …   trained when the first of them has its turn
             maple ce 1                                     by itself
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from calprompt.sweep.executors import Task
from calprompt.sweep.ordering import pass_key

MOST = 8  # runs in a pass, unless a sweep says how many: more hardly gain anything


def put_side_by_side(groups: Sequence[Sequence[Task]], most: int | None) -> list[list[Task]]:
    """The same tasks, those of a pass one after another; the first of them has the others as its companions.

    Args:
        groups: Tasks that one worker does after another.
        most: Runs in a pass. If None, a few, and only where a run ends with the same bits as alone.
    """
    return [_arrange(group, MOST if most is None else most, exact=most is None) for group in groups]


def _arrange(group: Sequence[Task], most: int, exact: bool) -> list[Task]:
    alike: dict[bytes, list[Task]] = {}
    for place, task in enumerate(group):
        single = task.verify or task.cell.record["training"]["diagnose_every"] > 0
        alike.setdefault(str(place).encode() if single else pass_key(task.cell), []).append(task)
    ordered = []
    for tasks in alike.values():
        for start in range(0, len(tasks), most):
            first, *others = tasks[start : start + most]
            beside = tuple(other.cell for other in others)
            ordered.append(replace(first, beside=beside, follows=False, exact=exact))
            ordered += [replace(other, beside=(), follows=True, exact=exact) for other in others]
    return ordered
