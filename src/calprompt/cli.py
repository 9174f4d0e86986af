"""The command line: `calprompt train`, `evaluate`, `transfer`, `show`, …, each a few lines over the library.

Libraries that take seconds to import are imported by the command that needs them.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import calprompt
from calprompt.commands import cache, data, demo, evaluate, train, transfer
from calprompt.commands.console import output
from calprompt.errors import CalpromptError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it worked, 2 for a mistake of the user's, 130 if interrupted."""
    chosen = parser().parse_args(arguments)
    errors = Console(stderr=True, soft_wrap=True, highlight=False)

    def warn(message: Warning | str, *_: Any, **__: Any) -> None:
        errors.print(f"[yellow]warning:[/yellow] {escape(str(message))}")

    try:
        with warnings.catch_warnings():
            warnings.showwarning = warn
            chosen.command(chosen)
    except (CalpromptError, OSError) as error:
        errors.print(f"[red]error:[/red] {escape(str(error))}")
        return 2
    except KeyboardInterrupt:
        goes_on = chosen.command in (train.train, demo.demo)
        hint = "; the same command goes on after the last finished epoch" if goes_on else ""
        errors.print(f"interrupted{hint}")
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """The arguments of all commands."""
    top = argparse.ArgumentParser(
        prog="calprompt", description="Prompt tuning of CLIP with confidences that can be trusted."
    )
    top.add_argument("--version", action="version", version=f"calprompt {calprompt.__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    demo.add_command(commands)
    train.add_command(commands)
    evaluate.add_command(commands)
    transfer.add_command(commands)

    one = commands.add_parser("show", help="print the table of a run again", description="Print the table of a run.")
    one.set_defaults(command=show)
    one.add_argument("run", metavar="RUN", help="folder of a run, such as runs/coop-photos-16shot-seed1-0123456789ab")

    one = commands.add_parser("list", help="tuners, losses, calibrators and metrics there are")
    one.set_defaults(command=list_names)
    one.add_argument(
        "--import", action="append", default=[], metavar="FILE", dest="imports", help="Python file of your own, too"
    )

    data.add_commands(commands)
    cache.add_commands(commands)
    return top


def show(chosen: argparse.Namespace) -> None:
    """Print what a run folder holds."""
    from calprompt.commands.tables import print_run
    from calprompt.results import load_run

    print_run(load_run(chosen.run))


def list_names(chosen: argparse.Namespace) -> None:
    """Print every registered name with the first line of what it says about itself."""
    from calprompt import calibrators, losses, metrics, tuners
    from calprompt.extensions import load_extension
    from calprompt.runs import recipes

    for path in chosen.imports:
        load_extension(path)
    kinds: dict[str, Any] = {
        "tuners": tuners.tuners,
        "losses": losses.losses,
        "calibrators": calibrators.calibrators,
        "metrics": metrics.metrics,
    }
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for kind, registry in kinds.items():
        table.add_row(f"[bold]{kind}[/bold]")
        for name in registry.available():
            about = (registry.get(name).__doc__ or "").strip().splitlines()
            table.add_row(f"  {name}", escape(about[0]) if about else "")
        if kind == "losses":
            for name, meaning in losses.NAMED.items():
                table.add_row(f"  {name}", f"= {meaning}")
    table.add_row("[bold]recipes[/bold]")
    for name in recipes.available():
        table.add_row(f"  {name}", escape(recipes.read_recipe(name)[0]))
    output().print(table)
