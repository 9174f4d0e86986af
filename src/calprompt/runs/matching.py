"""Which classes of other data are a run's base and novel ones: found by their names, as the model reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calprompt.clip.tokens import as_read
from calprompt.data import Dataset
from calprompt.errors import CalpromptError

SHOWN = 5


def matched_parts(target: Dataset, of_run: Mapping[str, Sequence[str]]) -> dict[str, list[int]] | None:
    """Labels of the target's classes by the run's part (base and novel, or all) that has them.

    None if they are other classes. If most of them are the run's, the rest is taken for a mistake.
    """
    places: dict[str, set[str]] = {}
    for part, names in of_run.items():
        for name in names:
            places.setdefault(as_read(name), set()).add(part)
    others = [name for name in target.class_names if as_read(name) not in places]
    known = len(target.class_names) - len(others)
    if others and known > len(others):
        shown = ", ".join(others[:SHOWN]) + (", …" if len(others) > SHOWN else "")
        raise CalpromptError(
            f"{known} of the {len(target.class_names)} classes of {target.name} are classes of the run, and these are "
            f"not: {shown}. Name them as in the run (--classes FILE), or take all of them for other classes "
            "(--all-classes)"
        )
    if others:
        return None
    found: dict[str, list[int]] = {part: [] for part in of_run}
    for label, name in enumerate(target.class_names):
        found[_part(target, label, places[as_read(name)])].append(label)
    return found


def _part(target: Dataset, label: int, parts: set[str]) -> str:
    """The one part that has the class; of a name that two classes of the run share, as the target itself is cut."""
    if len(parts) == 1:
        return next(iter(parts))
    if target.base is None:
        raise CalpromptError(
            f"the run has a base and a novel class of the name {target.class_names[label]!r}, and {target.name} does "
            "not say which is meant; take all of its classes for other ones (--all-classes)"
        )
    return "base" if label in target.base else "novel"
