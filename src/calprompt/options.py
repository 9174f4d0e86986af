"""Options given by name, checked against the signature that takes them before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from calprompt.errors import SettingError

_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "True or False",
    type(None): "None",
    Mapping: "names with values, such as {context: 4}",
    tuple: "a list",
}


def check_types(what: str, function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Check that options have the types of a function's parameters; parameters without an annotation take anything.

    >>> def bake(*, minutes: int, name: str | None = None): ...
    >>> check_types("option", bake, {"minutes": "ten"})
    Traceback (most recent call last):
    calprompt.errors.SettingError: option minutes must be a whole number, got 'ten'
    """
    hints = _hints(function)
    for name, value in values.items():
        allowed = _alternatives(hints.get(name, Any))
        if not any(_fits(value, hint) for hint in allowed):
            words = " or ".join(_WORDS.get(get_origin(hint) or hint, str(hint)) for hint in allowed)
            message = f"must be {words}, got {value!r}"
            raise SettingError(f"{what} {name} {message}") if what else SettingError(message, parameter=name)


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(function)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    if hint in (int, float) and isinstance(value, bool):
        return False
    if hint is float:
        return isinstance(value, int | float)
    kind = get_origin(hint) or hint
    return kind is Any or not isinstance(kind, type) or isinstance(value, kind)
