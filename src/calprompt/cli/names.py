"""List the available tuners, losses, calibrators, metrics and recipes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from calprompt.cli.shared import output
from calprompt.registry import load_extension, registered_names

KINDS = ("tuners", "losses", "calibrators", "metrics")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--import", action="append", default=[], metavar="FILE", dest="imports", help="also what this Python file adds")


def run(args: argparse.Namespace) -> None:
    """Print every registered name with the first line of its description."""
    from rich.markup import escape
    from rich.table import Table

    from calprompt.runs import config
    from calprompt.training_config import NAMED

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for kind in KINDS:
        table.add_row(f"[bold]{kind}[/bold]")
        for name, about in sorted(
            _imported(kind, args.imports) if args.imports else registered_names(f"calprompt.{kind}", kind)
        ):
            table.add_row(f"  {name}", escape(about))
        if kind == "losses":
            for name, meaning in NAMED.items():
                table.add_row(f"  {name}", f"= {meaning}")
    table.add_row("[bold]recipes[/bold]")
    for name in config.available():
        table.add_row(f"  {name}", escape(config.read_recipe(name)[0]))
    output().print(table)


def _imported(kind: str, paths: list[str]) -> Iterator[tuple[str, str]]:
    """The same from the registries, with what the user's files have added."""
    from importlib import import_module

    registry = getattr(import_module(f"calprompt.{kind}"), kind)
    for path in paths:
        load_extension(path)
    for name in registry.available():
        yield name, (registry.get(name).__doc__ or "").strip().partition("\n")[0]
