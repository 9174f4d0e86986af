"""The command `calprompt`: reads the arguments, runs a command, and turns errors into one readable message.

Libraries that take seconds to import are imported by the command that needs them.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import calprompt
from calprompt.cli import (
    cache,
    compare,
    data,
    demo,
    doctor,
    evaluate,
    export,
    extract,
    figure,
    fit,
    names,
    predict,
    report,
    results,
    serve,
    show,
    sweep,
    table,
    train,
    transfer,
)
from calprompt.cli.flags import flags_of, with_flags
from calprompt.errors import CalpromptError
from calprompt.text import os_problem, visible

COMMANDS = (
    *(demo, fit, predict, evaluate, export, serve, train, transfer, sweep, results),
    *(table, figure, compare, report, show, names, data, extract, cache, doctor),
)
EPOCHS = "continues after the last finished epoch"
RESUMABLE = {
    **dict.fromkeys((train.train, demo.demo, fit.fit, sweep.sweep), EPOCHS),
    extract.extract: "goes on with what is not stored yet",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Those of the command line, unless given.

    Returns:
        0 if it worked; 1 if `doctor` found a problem, a run of `sweep` failed or an image of `extract` cannot be read;
        2 for a mistake of the user's, 130 if it was interrupted, 141 if nobody reads its output.
    """
    parser = create_parser()
    args = parser.parse_args(arguments)

    def warn(message: Warning | str, *_: Any, **__: Any) -> None:
        _print_error("warning", with_flags(str(message), flags_of(parser)), "yellow")

    try:
        with warnings.catch_warnings(), _forgiving_output():
            warnings.showwarning = warn
            return args.command(args) or 0
    except BrokenPipeError:  # whoever read the output has seen enough, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except CalpromptError as error:
        _print_error("error", with_flags(str(error), flags_of(parser)), "red")
        return 2
    except OSError as error:
        _print_error("error", os_problem(error), "red")
        return 2
    except ImportError as error:
        if (error.name or "").startswith("calprompt"):
            raise
        _print_error("error", doctor.broken(error), "red")
        return 2
    except KeyboardInterrupt:
        hint = f"; the same command {RESUMABLE[args.command]}" if args.command in RESUMABLE else ""
        _print_error(f"interrupted{hint}", "", None)
        return 130


@contextmanager
def _forgiving_output() -> Iterator[None]:
    """Within it, what standard output cannot encode is shown with a backslash, such as file names that are no text."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        yield
        return
    before = stream.errors
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        stream.reconfigure(errors=before)


def create_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="calprompt",
        description="Adapt CLIP to your own classes from a few images, with confidences you can trust.",
    )
    parser.add_argument("--version", action="version", version=f"calprompt {calprompt.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in COMMANDS:
        module.add_command(commands)
    return parser


def _print_error(kind: str, message: str, colour: str | None) -> None:
    """One message on standard error; bytes of file names that are not UTF-8 are shown as such."""
    text = visible(message)
    try:
        from rich.console import Console
        from rich.markup import escape
    except ImportError:  # `doctor` says that it is missing
        sys.stderr.write(f"{kind}: {text}\n" if colour else f"{kind}\n")
        return
    label = f"[{colour}]{kind}:[/{colour}]" if colour else kind
    Console(stderr=True, soft_wrap=True, highlight=False, file=sys.stderr).print(f"{label} {escape(text)}".rstrip())
