"""The order of runs: those that share a backbone and a dataset go together, so that each is loaded once.

cells ── same backbone, dataset ──▶ groups ── by the features they train on ──▶ one worker each
                                      └── fewer groups than workers? the largest is halved
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from calprompt.sweep.expansion import Cell

SHARED = ("backbone", "backbone_config", "dtype", "device", "data", "root", "classes", "base", "exif", "skip_bad")
FEATURES = ("protocol", "shots", "seed", "crop", "views")  # of runs that train on the same features


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
        groups.setdefault(_values(item.cell, SHARED), []).append(item)
    ordered = [sorted(group, key=lambda item: _values(item.cell, FEATURES)) for group in groups.values()]
    while len(ordered) < workers:
        largest = max(ordered, key=len, default=[])
        if len(largest) < 2:
            break
        place, half = ordered.index(largest), (len(largest) + 1) // 2
        ordered[place : place + 1] = [largest[:half], largest[half:]]
    return sorted(ordered, key=len, reverse=True)


def group_key(cell: Cell) -> str:
    """What runs of a group have in common."""
    return _values(cell, SHARED)


def _values(cell: Cell, names: Sequence[str]) -> str:
    def value(name: str) -> Any:
        return cell.record["training"][name] if name == "seed" else cell.record.get(name)

    return repr([value(name) for name in names])
