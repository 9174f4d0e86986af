"""`calprompt table`: the paper's tables from results."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from calprompt.cli.console import output, show_progress
from calprompt.cli.flags import describe
from calprompt.cli.results import filter_pair
from calprompt.files import check_output, write_output

if TYPE_CHECKING:
    from calprompt.report.table import Table

FORMATS = ("terminal", "markdown", "latex", "csv")
SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv"}
EXAMPLES = """\
  calprompt table main runs/pocket
  calprompt table main results.csv --split novel --difference
  calprompt table ace-mce runs/pocket --format latex --out table.tex
  calprompt table main runs/paper paper/main --published
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `table` to its parser."""
    from calprompt.papers import registered
    from calprompt.report.table import TABLE_SPLITS

    names = list(registered("tables", "TABLES"))
    describe(
        parser,
        "Make a table in the layout of the paper: methods grouped by tuner, datasets as columns, and an\n"
        "average. Of all results it takes the runs of the paper's sweep of the same name, in the form (paper/NAME,\n"
        "paper/NAME-released, paper/pocket-NAME) that most of them are of, unless a sweep is given as well.",
        EXAMPLES,
    )
    parser.set_defaults(command=table)
    add = parser.add_argument
    add("name", metavar="NAME", choices=names, help=f"of the table: {', '.join(names)}")
    add("source", nargs="+", metavar="SOURCE", help="run folders, folders of runs, tables of results, sweeps")
    add("--format", choices=FORMATS, help="how to write it (default: by the ending of --out, else for the terminal)")
    add("--out", metavar="FILE", help="write it into a file: .md, .tex or .csv")
    splits = ", ".join(TABLE_SPLITS)
    add("--split", nargs="+", default=[], choices=TABLE_SPLITS, metavar="SPLIT", help=f"which classes: {splits}")
    add("--metric", nargs="+", default=[], metavar="METRIC", help="instead of the paper's, such as ace mce nll")
    add(
        "--method", nargs="+", default=[], metavar="METHOD", help="only these, such as vanilla tcpt 'tcpt, temperature'"
    )
    add("--spread", action="store_true", help="with the standard deviation over seeds")
    add("--difference", action="store_true", help="with the paired difference to the plain tuner and its interval")
    add("--published", action="store_true", help="with the numbers that the paper printed, and whether ours agree")
    add("--filter", action="append", default=[], metavar="KEY=VALUE", help="only rows with this value in a column")


def table(args: argparse.Namespace) -> None:
    """Read the results, make the tables, and print or write them."""
    from calprompt.metrics import metric_info
    from calprompt.papers import registered
    from calprompt.report.table import TableOptions
    from calprompt.results.sources import read_source

    options = TableOptions(
        tuple(args.split), tuple(args.metric), tuple(args.method), args.spread, args.difference, args.published
    )
    wanted = dict(filter_pair(text) for text in args.filter)
    if args.out is not None:
        check_output(args.out, () if args.format else tuple(SUFFIXES), parameter="out")
    for name in args.metric:
        metric_info(name)
    with show_progress() as progress:
        definition = registered("tables", "TABLES")[args.name]
        source = read_source(*args.source, usual=definition.sweeps, progress=progress)
    tables = definition.make(source.filter(**wanted) if wanted else source, options)
    form = args.format or SUFFIXES.get(Path(args.out or "").suffix, "terminal")
    if args.out is None and form == "terminal":
        _print(tables, [each.title for each in source.unfinished])
        return
    text = _rendered(tables, form)
    if args.out is None:
        sys.stdout.write(text)
    else:
        write_output(Path(args.out).expanduser(), text.encode())
        output().print(args.out, markup=False, soft_wrap=True)


def _rendered(tables: list[Table], form: str) -> str:
    from rich.console import Console

    from calprompt.report.writers import print_table, to_csv, to_latex, to_markdown

    if form == "csv":
        return to_csv(tables).decode()
    if form == "markdown":
        return "\n".join(map(to_markdown, tables))
    if form == "latex":
        return "\n".join(map(to_latex, tables))
    console = Console(highlight=False, width=200, record=True, file=sys.stderr, quiet=True)
    for each in tables:
        print_table(each, console)
    return console.export_text()


def _print(tables: list[Table], unfinished: list[str]) -> None:
    from calprompt.report.writers import print_table
    from calprompt.text import plural, shorten

    console = output()
    for each in tables:
        print_table(each, console)
        console.print()
    if unfinished:
        message = f"{plural(len(unfinished), 'run')} without a result: {shorten(unfinished)}"
        console.print(message, markup=False, soft_wrap=True)
