"""Registries of things made by name, options checked against signatures, and Python files of the user."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from types import UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from calprompt.errors import CalpromptError, NotFoundError, SettingError, UnknownNameError
from calprompt.text import nearest

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


T = TypeVar("T")


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not among the known ones: the nearest match first, then the whole list."""
    known = sorted(known)
    near = nearest(name, known)
    hint = f" Did you mean {near!r}?" if near else ""
    return UnknownNameError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(known) if known else '(none)'}.")


class Registry(Generic[T]):
    """A dictionary that a method joins with a decorator.

    >>> shapes = Registry("shape")
    >>> @shapes.register("square")
    ... class Square:
    ...     def __init__(self, side: float = 1.0): ...
    >>> shapes.available()
    ['square']
    >>> shapes.get("squares")
    Traceback (most recent call last):
    calprompt.errors.UnknownNameError: unknown shape 'squares'. Did you mean 'square'? Known: square.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that files a thing under `name`; two things cannot share one."""

        def add(thing: T) -> T:
            if name in self._things and self._things[name] is not thing:
                raise SettingError(f"{self.kind} {name!r} is registered already; choose another name")
            self._things[name] = thing
            return thing

        return add

    def available(self) -> list[str]:
        """Registered names, sorted."""
        return sorted(self._things)

    def get(self, name: str) -> T:
        """The thing of that name."""
        if name not in self._things:
            raise unknown(self.kind, name, self._things)
        return self._things[name]

    def create(self, spec: str | Call) -> Any:
        """Build a thing from its name and options, checked against its signature.

        >>> shapes = Registry("shape")
        >>> @shapes.register("square")
        ... class Square:
        ...     def __init__(self, side: float = 1.0): self.side = side
        >>> shapes.create("square(side=2)").side
        2
        >>> shapes.create("square(height=2)")
        Traceback (most recent call last):
        calprompt.errors.UnknownNameError: unknown option of shape 'square': 'height'. Known: side.
        """
        call = parse_call(spec, self.kind) if isinstance(spec, str) else spec
        make: Any = self.get(call.name)
        known = signature(make).parameters
        for option in call.options:
            if option not in known:
                raise unknown(f"option of {self.kind} {call.name!r}:", option, known)
        check_types(f"option of {self.kind} {call.name!r}:", make, call.options)
        return make(**call.options)


class Call:
    """A name and its options, as in `margin(alpha=0.1)`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name, self.options = name, dict(options)


def parse_call(text: str | ast.expr, kind: str) -> Call:
    """Read `name` or `name(option=value, ...)`; values are plain Python values.

    >>> call = parse_call("dac(k=3)", "calibrator")
    >>> call.name, call.options
    ('dac', {'k': 3})
    """
    shown = text if isinstance(text, str) else ast.unparse(text)
    try:
        node = ast.parse(text.strip(), mode="eval").body if isinstance(text, str) else text
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        if not isinstance(call.func, ast.Name) or call.args or any(word.arg is None for word in call.keywords):
            raise ValueError("not a name with options")
        options = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SettingError(
            f"cannot read the {kind} {shown.strip()!r}; write a name, or a name with options in parentheses such as "
            "name(option=value)"
        ) from error
    for option, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingError(f"option {option} in {shown.strip()!r} is not a finite number")
    return Call(call.func.id, options)


def registered_names(package: str, registry: str) -> Iterator[tuple[str, str]]:
    """Names that a package's files register, and the first line of each docstring, without importing any of them.

    >>> dict(registered_names("calprompt.losses", "losses"))["ce"]
    '-mean_i log softmax(z_i)[y_i], in float32 or better.'
    """
    for node in definitions(package):
        for name in registered_as(node, registry):
            yield name, (ast.get_docstring(node) or "").partition("\n")[0]


def definitions(package: str) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Classes and functions in the files of a package, without importing any of them."""
    spec = find_spec(package)
    for place in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(place).glob("*.py")):
            body = ast.parse(path.read_text(encoding="utf-8")).body
            yield from (node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef))


def registered_as(node: ast.ClassDef | ast.FunctionDef, registry: str) -> list[str]:
    """Names that the decorators of a definition register it under."""
    calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
    return [ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) == f"{registry}.register"]


_imported: dict[Path, str] = {}  # files that this process has run, and their digests


def load_extension(path: str | Path) -> str:
    """Import a Python file by its path, once per process.

    The file is code and is run: import only what you trust. A file that has changed since it was imported is an error,
    because the old code would be used under the digest of the new one.
    """
    path, digest = Path(path).expanduser().resolve(), extension_digest(path)
    if _imported.get(path, digest) != digest:
        raise SettingError(f"{path} has changed since this process imported it; start a new process to use it")
    name = f"calprompt_extension_{digest[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException as error:  # including SystemExit
            del sys.modules[name]
            if isinstance(error, CalpromptError | KeyboardInterrupt):
                raise
            reason = f": {error}" if str(error) else ""
            raise SettingError(f"importing {path} failed: {type(error).__name__}{reason}") from error
    _imported[path] = digest
    return digest


def imported_files(digests: Sequence[str]) -> list[str]:
    """For each of these digests, a file that this process has imported already, because the user named it."""
    known = {digest: str(path) for path, digest in _imported.items() if path.is_file()}
    return [known[digest] for digest in digests if digest in known]


def extension_digest(path: str | Path) -> str:
    """The sha256 of a Python file, which is not run."""
    path = Path(path).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        raise NotFoundError(f"there is no Python file {path} to import")
    return hashlib.sha256(path.read_bytes()).hexdigest()
