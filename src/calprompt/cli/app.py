"""The command `calprompt`: reads the arguments, runs a command, and turns errors into one readable message.

A command's module is imported when the command is chosen; libraries that take seconds to import, when it needs them.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import calprompt
from calprompt.cli.shared import describe, flags_of
from calprompt.errors import CalpromptError, Message
from calprompt.text import os_problem, visible

COMMANDS = {  # and their lines in the list of commands
    "demo": "compare zero-shot, CoOp and CoOp + TCPT on the embedded model and pictures",
    "fit": "make a classifier from a folder of images, with confidences you can act on",
    "predict": "classify images, with calibrated probabilities",
    "suggest": "list the images to label next, so that a model learns most from them",
    "evaluate": "measure a fitted model on new images, or runs under calibrators",
    "export": "write a fitted model as a folder that needs only onnxruntime, numpy and Pillow",
    "serve": "serve a model: a web page and a JSON API",
    "train": "tune prompts on base classes, evaluate on base and novel ones",
    "transfer": "evaluate runs on other data: the same classes in other images, or other classes",
    "sweep": "run a grid of settings, several at a time",
    "results": "make one table of all runs in a folder",
    "table": "make a table of the paper from results",
    "figure": "draw a figure of runs or results: reliability, margins, shots, effects, …",
    "compare": "compare runs or models on the same images",
    "report": "write one HTML page about runs or results, or check one",
    "show": "print the table of a run again",
    "list": "list tuners, losses, calibrators, metrics and recipes",
    "data": "datasets: list, info, check, prepare",
    "extract": "compute image features ahead of training, with many workers",
    "cache": "the store of image features: show, prune, verify, merge",
    "doctor": "check this machine and this installation, and say what to do",
}
MODULES = {"list": "names"}  # modules whose name is not that of their command
RESUMABLE = {
    **dict.fromkeys(("train", "demo", "fit", "sweep"), "resume after the last finished epoch"),
    "extract": "compute what is not stored yet",
}
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = create_parser()
    flags: dict[str, str] = {}
    name = ""

    def warn(message: Warning | str, *_: Any, **__: Any) -> None:
        _print_error("warning", _spelled(message, flags), "yellow")

    try:
        with warnings.catch_warnings(), _forgiving_output():
            warnings.showwarning = warn
            for word in arguments:
                if "\0" in word:
                    raise CalpromptError(f"arguments must not have NUL bytes in them, got {word!r}")
            args, unknown = parser.parse_known_args(arguments)
            name = args.command_name
            if unknown:
                _refuse_unknown(_commands(parser)[name], unknown)
            flags |= flags_of(_commands(parser)[name])
            _refuse_empty(args)
            status = args.command(args) or 0
            sys.stdout.flush()
            return status
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        _drop_output()
        return 141
    except CalpromptError as error:
        _print_error("error", _spelled(error, flags), "red")
        return 2
    except OSError as error:
        _print_error("error", _os_message(error), "red")
        return 2
    except ImportError as error:
        if (error.name or "").startswith("calprompt"):
            raise
        message = f"{error}; 'calprompt doctor' says what is wrong with this installation"
        _print_error("error", message, "red")
        return 2
    except KeyboardInterrupt:
        hint = f"; run the same command to {RESUMABLE[name]}" if name in RESUMABLE else ""
        _print_error(f"interrupted{hint}", "", None)
        return 130


class _Command(argparse.ArgumentParser):
    """The parser of a command, whose module is imported when the command is chosen; its docstring is the help."""

    def __init__(self, *, module: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.module: str | None = module

    def load(self) -> None:
        """Add the command's arguments, once."""
        if self.module is not None:
            module, self.module = import_module(f"calprompt.cli.{self.module}"), None
            describe(self, module.__doc__)
            self.set_defaults(command=getattr(module, "run", None))
            module.add_arguments(self)

    def parse_known_args(self, *given: Any, **named: Any) -> Any:
        self.load()
        return super().parse_known_args(*given, **named)


def create_parser(*, complete: bool = False) -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="calprompt",
        description="Adapt CLIP to your own classes from a few images, with confidences you can trust.",
    )
    parser.add_argument("--version", action="version", version=f"calprompt {calprompt.__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command_name", required=True, parser_class=_Command
    )
    for name, line in COMMANDS.items():
        command = commands.add_parser(name, help=line, module=MODULES.get(name, name))
        if complete:
            command.load()
    return parser


def _commands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    return next(each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction))


def _refuse_unknown(command: argparse.ArgumentParser, words: list[str]) -> NoReturn:
    """End with the usage of the command, and the flag that may have been meant."""
    flags = [flag for flag in flags_of(command).values() if flag.startswith("--")]
    near = next((flag for word in words for flag in get_close_matches(word.partition("=")[0], flags, 1, 0.75)), None)
    command.error(f"unrecognized arguments: {' '.join(words)}" + (f"; did you mean {near}?" if near else ""))


def _refuse_empty(args: argparse.Namespace) -> None:
    """Raise for an empty word, as an unset variable of the shell leaves one; as a path it would be this folder."""
    for name, value in vars(args).items():
        if value == "" or (isinstance(value, list) and "" in value):
            raise CalpromptError("must not be empty, got ''", parameter=name)


@contextmanager
def _forgiving_output() -> Iterator[None]:
    """Escape characters that standard output cannot encode, such as in file names that are not UTF-8."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        yield
        return
    before = stream.errors
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with suppress(OSError):  # it is flushed, and its problem was reported
            stream.reconfigure(errors=before)


def _spelled(message: Warning | CalpromptError | str, flags: Mapping[str, str]) -> str:
    return message.spelled(flags) if isinstance(message, Message) else str(message)


def _os_message(error: OSError) -> str:
    what = os_problem(error)
    if error.filename is None:
        try:
            sys.stdout.flush()
        except OSError:
            what = f"standard output: {what}"
            _drop_output()
    if error.errno in DISK_FULL:
        what += "; make room on that disk, or write to another one"
    return what


def _drop_output() -> None:
    """Discard what standard output could not take, so that Python reports nothing at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(kind: str, message: str, colour: str | None) -> None:
    """One message on standard error; bytes of file names that are not UTF-8 are shown as such."""
    text = visible(message)
    try:
        from rich.console import Console
        from rich.markup import escape
    except ImportError:  # `doctor` reports that it is missing
        sys.stderr.write(f"{kind}: {text}\n" if colour else f"{kind}\n")
        return
    label = f"[{colour}]{kind}:[/{colour}]" if colour else kind
    Console(stderr=True, soft_wrap=True, highlight=False, file=sys.stderr).print(f"{label} {escape(text)}".rstrip())
