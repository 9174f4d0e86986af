"""Names to things: methods register themselves, and an unknown name is answered with the known ones."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from calprompt.errors import CalpromptError

T = TypeVar("T")


def unknown(kind: str, name: str, known: Iterable[str]) -> CalpromptError:
    """The error for a name that is not among the known ones: the nearest match first, then the whole list."""
    known = sorted(known)
    spelled = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=0.5)
    hint = f" Did you mean {spelled[near[0]]!r}?" if near else ""
    return CalpromptError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(known) if known else '(none)'}.")


class Registry(Generic[T]):
    """A dictionary that a method joins with a decorator.

    >>> shapes = Registry("shape")
    >>> @shapes.register("square")
    ... class Square: ...
    >>> shapes.available()
    ['square']
    >>> shapes.get("squares")
    Traceback (most recent call last):
    calprompt.errors.CalpromptError: unknown shape 'squares'. Did you mean 'square'? Known: square.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that files a thing under `name`; two things cannot share one."""

        def add(thing: T) -> T:
            if name in self._things and self._things[name] is not thing:
                raise CalpromptError(f"{self.kind} {name!r} is registered already; choose another name")
            self._things[name] = thing
            return thing

        return add

    def available(self) -> list[str]:
        """Registered names, sorted."""
        return sorted(self._things)

    def get(self, name: str) -> T:
        if name not in self._things:
            raise unknown(self.kind, name, self._things)
        return self._things[name]
