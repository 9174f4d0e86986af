"""What commands share: flags, standard output for results, and several runs in one command.

Flags are made from the dataclasses that they fill, so that no default is written twice. A field's help is its line
under "Attributes:" in the docstring of its class, its type and default are the field's own. Errors of the library carry
parameters (`skip_bad=True`); `flags_of` says which flags they are (`--skip-bad`).
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from calprompt.errors import CalpromptError, Parameter, SettingError
from calprompt.text import os_problem

if TYPE_CHECKING:
    from rich.console import Console


NO_VALUE = {"shots": ("all", "training images per class"), "views": ("new", "crops of an image")}  # words for None
METAVARS = {
    "backbone": "SPEC",
    "backbone_config": "NAME",
    "root": "DIR",
    "classes": "FILE",
    "base": "FILE",
    "shots": "K",
    "val_shots": "K",
    "validation": "WHERE",
    "diagnose_every": "STEPS",
    "crop": "SHARE",
    "autocast": "DTYPE",
    "template": "TEXT",
    "calibrators": "NAME",
    "data": "DATA",
    "errors": "SHARE",
    "fixes": "FILE",
}
CAPITALISED = ("Python", "CSV", "EXIF")  # words that keep their capital
ALIASES = {
    "imports": "--import",
    "options": "--set",
    "costs": "--cost",
    "config": "--backbone-config",
    "upright": "--exif",
}


PARTS = ("base", "novel", "all")
DATA = "folder with one subfolder per class, a table, or a name of 'calprompt data list'"
SHARED: dict[str, tuple[str, dict[str, Any]]] = {  # flags of several commands
    "backbone": (
        "--backbone",
        {"metavar": "SPEC", "help": "new location of the same weights (default: the recorded one)"},
    ),
    "device": ("--device", {"help": "cpu, cuda, cuda:1, … (default: {})"}),
    "filter": (
        "--filter",
        {"action": "append", "default": [], "metavar": "KEY=VALUE", "help": "only rows with this value in a column"},
    ),
    "imports": (
        "--import",
        {
            "action": "append",
            "metavar": "FILE",
            "dest": "imports",
            "help": "Python file it needs; none runs unless named",
        },
    ),
    "no_cache": ("--no-cache", {"action": "store_true", "help": "neither read nor write image features on disk"}),
    "quiet": ("--quiet", {"action": "store_true", "help": "show no progress"}),
    "ray": (
        "--ray",
        {"metavar": "ADDRESS", "help": "use a Ray cluster: auto, HOST:PORT of its head, or local to start one"},
    ),
}


def add_shared(parser: argparse.ArgumentParser, *names: str, device: str = "") -> None:
    """Add flags that several commands have; `device` is the default that its help names."""
    for name in (*names, *(["device"] if device and "device" not in names else [])):
        flag, settings = SHARED[name]
        parser.add_argument(flag, **{**settings, "help": settings["help"].format(device or "the model's")})


def describe(parser: argparse.ArgumentParser, text: str | None) -> None:
    """Show a docstring as a command's help: what it does at the beginning, examples at the end."""
    about, _, examples = inspect.cleandoc(text or "").partition("\n\nexamples:\n")
    parser.description, parser.epilog = about, f"examples:\n{examples}" if examples else None
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def add_action(actions: Any, run: Callable[[argparse.Namespace], Any], help: str) -> argparse.ArgumentParser:
    """Add an action to a command that has several, such as `cache prune`: a function, whose docstring is its help."""
    parser: argparse.ArgumentParser = actions.add_parser(run.__name__.partition("_")[0], help=help)
    describe(parser, run.__doc__)
    parser.set_defaults(command=run)
    return parser


def filters(args: argparse.Namespace) -> dict[str, str]:
    """Column -> value of every --filter."""
    pairs = {text: text.partition("=") for text in args.filter}
    for text, (name, equals, _) in pairs.items():
        if not equals or not name:
            raise SettingError(f"--filter takes KEY=VALUE, such as tuner=coop; got {text!r}")
    return {name: value for name, _, value in pairs.values()}


def attribute_help(kind: type) -> dict[str, str]:
    """The description of each attribute in the docstring of a class, on one line.

    >>> from calprompt.training_config import TrainingConfig
    >>> attribute_help(TrainingConfig)["lr"]
    'Learning rate.'
    """
    doc = inspect.getdoc(kind) or ""
    section = re.search(r"^Attributes:\n((?:[ ]{4}.*\n?|\n)*)", doc, re.MULTILINE)
    found: dict[str, str] = {}
    name = ""
    for line in (section[1] if section else "").splitlines():
        start = re.match(r" {4}(\w+): (.*)", line)
        if start:
            name = start[1]
            found[name] = start[2].strip()
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return found


def add_flags(
    parser: argparse.ArgumentParser, kind: type, *, leave_out: tuple[str, ...] = (), required: tuple[str, ...] = ()
) -> None:
    """Add a flag for every field of a dataclass; what is not given is left to the dataclass."""
    hints, helps = get_type_hints(kind), attribute_help(kind)
    for field in dataclasses.fields(kind):
        if field.name in leave_out:
            continue
        text = helps[field.name].rstrip(".").replace("%", "%%")
        text = text if text.startswith(CAPITALISED) else text[0].lower() + text[1:]
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": field.name}
        flag = ALIASES.get(field.name, f"--{field.name.replace('_', '-')}")
        default = _default(field)
        if field.name in NO_VALUE:
            text = text.replace("if None", f"with '{NO_VALUE[field.name][0]}'")
        elif otherwise := re.fullmatch(r"(.*); (.*?),? if None", text):
            text, default = otherwise.groups()
        if field.name in required:
            options["required"] = True
        elif default is not None:
            text += f" (default: {default})"
        parser.add_argument(flag, **options, **_kind(field.name, hints[field.name]), help=text)


def settings_of(args: argparse.Namespace, *kinds: type) -> dict[str, Any]:
    """The settings that were given on the command line, for dataclasses whose flags were added."""
    hints = {name: hint for kind in kinds for name, hint in get_type_hints(kind).items()}
    fields = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    given = {name: value for name, value in vars(args).items() if name in fields}
    return {name: tuple(value) if get_origin(hints[name]) is tuple else value for name, value in given.items()}


def flags_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """From every parameter to the flag that sets it, or to the name of its place, of a command and those in it."""
    found: dict[str, str] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found |= flags_of(command)
        elif action.option_strings:
            found[action.dest] = action.option_strings[-1]
        else:
            found[action.dest] = str(action.metavar or action.dest.upper())
    return {**{name: flag for name, flag in ALIASES.items() if flag in found.values()}, **found}


def checked_tolerance(args: argparse.Namespace, usual: float) -> float:
    """The value of --tolerance, which goes with --check."""
    if args.tolerance is None:
        return usual
    if args.check is None:
        raise SettingError("goes with ", Parameter("check", "FILE"), parameter="tolerance")
    if not 0 <= args.tolerance <= 100:
        raise SettingError(f"must be percentage points, from 0 to 100; got {args.tolerance}", parameter="tolerance")
    return float(args.tolerance)


def positive(text: str) -> int:
    """A whole number of at least 1, as argparse takes it."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _default(field: dataclasses.Field[Any]) -> str | None:
    absent = (dataclasses.MISSING, None, False)
    if any(field.default is value for value in absent) or field.default == ():
        return None
    value = field.default
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _kind(name: str, hint: Any) -> dict[str, Any]:
    """How argparse reads a value of this type."""
    if name == "imports":
        return {"action": "append", "metavar": "FILE"}
    if name == "options":
        return {"action": "append", "metavar": "NAME=VALUE"}
    if name == "costs":
        return {"action": "append", "metavar": "'TRUTH as ANSWER: X'"}
    if name == "never_miss":
        return {"action": "append", "nargs": 2, "metavar": ("CLASS", "SHARE")}
    if hint is bool:
        return {"action": "store_true"}
    if get_origin(hint) is tuple:
        kind = get_args(hint)[0]
        return {"nargs": "+", "metavar": METAVARS.get(name, "NAME")} | ({} if kind is str else {"type": kind})
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kind = next(each for each in alternatives if each is not type(None))
    if name in NO_VALUE:
        return {"type": _number_or(*NO_VALUE[name]), "metavar": METAVARS.get(name, "N")}
    metavar = METAVARS.get(name) or {int: "N", float: "X"}.get(kind) or name.upper()
    return {"metavar": metavar} | ({} if kind is str else {"type": kind})


def _number_or(word: str, of: str) -> Any:
    """A whole number, or a word for none."""

    def number(text: str) -> int | None:
        if text != word and not text.isdecimal():
            raise argparse.ArgumentTypeError(f"expected a number of {of}, or {word!r}; got {text!r}")
        return None if text == word else int(text)

    return number


T = TypeVar("T")


def output() -> Console:
    """Standard output, wide enough for a table when it goes to a file."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


def say(*lines: object) -> None:
    """Print lines as they are, on standard output."""
    console = output()
    for line in lines:
        console.print(str(line), markup=False, soft_wrap=True)


def each_run(folders: Sequence[str], work: Callable[[Path], T]) -> tuple[list[T], CalpromptError | None]:
    """The results of `work` for every run, and the error to raise at the end for runs that failed."""
    done: list[T] = []
    wrong: dict[str, object] = {}
    places = list(dict.fromkeys(map(Path, folders)))
    for folder in places:
        try:
            done.append(work(folder))
        except CalpromptError as error:
            wrong[str(error)] = error
        except OSError as error:
            wrong[os_problem(error)] = os_problem(error)
    left_out = len(places) - len(done)
    if not left_out:
        return done, None
    if len(places) == 1:
        return done, CalpromptError(*wrong.values())
    reasons = [piece for reason in wrong.values() for piece in ("\n  ", reason)]
    return done, CalpromptError(f"{left_out} of {len(places)} runs were left out:", *reasons)
