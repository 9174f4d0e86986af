"""Dataclasses as plain data for JSON, and back again by the types of their fields.

This file is copied into the script of every exported folder (`calprompt.export.exporter`).
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from typing import Self


class Record:
    """Base of dataclasses that are kept in JSON files."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data; an infinite number is written as None."""
        found: dict[str, Any] = plain(self)
        return found

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """From what `to_dict` gave."""
        found: Self = restored(cls, values)
        return found


def plain(value: Any) -> Any:
    """Plain data from which `restored` makes the value; dictionaries stay as they are."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def restored(kind: Any, value: Any) -> Any:
    """A value of some type from plain data.

    >>> restored(tuple[tuple[int, ...], ...] | None, [[1, 2], [3]])
    ((1, 2), (3,))
    """
    if value is None:
        return None
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return restored(next(each for each in arguments if each is not type(None)), value)
    if origin is tuple:
        return tuple(restored(arguments[0], each) for each in value)  # all of one type
    if origin is list:
        return [restored(arguments[0], each) for each in value]
    if origin is dict:
        return {name: restored(arguments[1], each) for name, each in value.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: restored(hints.get(name), each) for name, each in value.items()})
    return value
