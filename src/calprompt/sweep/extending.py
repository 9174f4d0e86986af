"""A sweep file that extends another one: everything of that file, but for what this one says.

    extends: paper/main                         # the package's, or a path, seen from this file
    recipe: maple-paper                         # instead of the recipes there
    settings: {shots: 8}                        # goes over the setting of that name, and leaves the others
    axes: {loss: [ce, tcpt]}                    # goes over the axis of that name, and leaves the others
    only: [{data: [dtd, eurosat]}]              # instead of what the other file has under this key

A name stands in one place: what is said here under `recipe`, `settings`, `axes`, `zip` or `seeds` replaces what the
other file says of the same name, wherever it says it. Values that are zipped belong together, so `zip` is replaced as a
whole; all other keys are too. A key without a value takes away what the other file has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calprompt.errors import SettingError

BY_NAME = ("settings", "axes")  # keys whose names go over those of the other file one by one


def extend(base: Mapping[str, Any], changes: Mapping[str, Any], source: str, origin: str) -> dict[str, Any]:
    """What a file says that extends another.

    >>> extend({"axes": {"loss": ["ce"], "data": ["a", "b"]}, "seeds": [1]}, {"settings": {"data": "b"}}, "it", "other")
    {'axes': {'loss': ['ce']}, 'seeds': [1], 'settings': {'data': 'b'}}
    """
    said = _names(changes)
    merged = {key: value for key, value in base.items() if key not in changes or key in BY_NAME}
    if "zip" in merged:
        for group in merged["zip"] or []:
            zipped = sorted(said & set(group)) if isinstance(group, Mapping) else []
            if zipped:
                others = ", ".join(name for name in group if name != zipped[0])
                raise SettingError(
                    f"{source}: {zipped[0]} is zipped with {others} in {origin}, where values belong together; say zip "
                    "as a whole here, or choose some of its rows with only"
                )
    for key in BY_NAME:
        if merged.get(key):
            own = changes.get(key) or {}  # which keep their places
            merged[key] = {name: value for name, value in merged[key].items() if name not in said or name in own}
    if "recipe" in said:
        merged.pop("recipe", None)
    if "seed" in said:
        merged.pop("seeds", None)
    for key, value in changes.items():
        if key in BY_NAME and value and merged.get(key):
            merged[key] = {**merged[key], **value}
        else:
            merged[key] = value
    return {key: value for key, value in merged.items() if not (key in BY_NAME and value == {})}


def _names(content: Mapping[str, Any]) -> set[Any]:
    """Names of the settings that a file says something of."""
    found = {name for key in BY_NAME for name in content.get(key) or {}}
    for group in content.get("zip") or []:
        found |= set(group) if isinstance(group, Mapping) else set()
    return found | ({"recipe"} if "recipe" in content else set()) | ({"seed"} if "seeds" in content else set())
