"""Which classes of other data are a run's base and novel ones: found by their names, as the model reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calprompt.class_names import normalized_name
from calprompt.data import Dataset
from calprompt.errors import DataError, Parameter
from calprompt.text import shorten


def matched_parts(target: Dataset, of_run: Mapping[str, Sequence[str]]) -> dict[str, list[int]] | None:
    """Labels of the target's classes by the run's part (base and novel, or all) that has them.

    None if they are other classes. If most of them are the run's, the rest is taken for a mistake.
    """
    places: dict[str, set[str]] = {}
    for part, names in of_run.items():
        for name in names:
            places.setdefault(normalized_name(name), set()).add(part)
    others = [name for name in target.class_names if normalized_name(name) not in places]
    known = len(target.class_names) - len(others)
    if others and known > len(others):
        raise DataError(
            f"{known} of the {len(target.class_names)} classes of {target.name} are classes of the run, and these are "
            f"not: {shorten(others)}. Name them as in the run with ",
            Parameter("classes", "FILE"),
            ", or take all of them for other classes with ",
            Parameter("all_classes", True),
        )
    if others:
        return None
    found: dict[str, list[int]] = {part: [] for part in of_run}
    for label, name in enumerate(target.class_names):
        found[_part(target, label, places[normalized_name(name)])].append(label)
    return found


def _part(target: Dataset, label: int, parts: set[str]) -> str:
    """The one part that has the class; of a name that two classes of the run share, as the target itself is cut."""
    if len(parts) == 1:
        return next(iter(parts))
    if target.base is None:
        raise DataError(
            f"the run has a base and a novel class of the name {target.class_names[label]!r}, and {target.name} does "
            "not say which is meant; take all of its classes for other ones with ",
            Parameter("all_classes", True),
        )
    return "base" if label in target.base else "novel"
