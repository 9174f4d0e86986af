"""Make a table in the layout of the paper: methods grouped by tuner, datasets as columns, and an average. Of all
results it takes the runs of the paper's sweep of the same name, in the form (paper/NAME, paper/NAME-released,
paper/pocket-NAME) that most of them belong to, unless a sweep is given as well.

examples:
  calprompt table main runs/pocket
  calprompt table main results.csv --split novel --difference
  calprompt table ace-mce runs/pocket --format latex --out table.tex
  calprompt table main runs/paper paper/main --published
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from calprompt.cli.shared import add_shared, filters, output, say
from calprompt.files import check_output, write_output
from calprompt.papers import registered
from calprompt.progress import show_progress
from calprompt.report.table import TABLE_SPLITS, Table, TableOptions
from calprompt.report.writers import print_table, to_csv, to_latex, to_markdown
from calprompt.text import plural, shorten

FORMATS = ("terminal", "markdown", "latex", "csv")
SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = list(registered("tables", "TABLES"))
    add, splits = parser.add_argument, ", ".join(TABLE_SPLITS)
    add("name", metavar="NAME", choices=names, help=f"which table: {', '.join(names)}")
    add("source", nargs="+", metavar="SOURCE", help="run folders, folders of runs, tables of results, sweeps")
    add("--format", choices=FORMATS, help="output format (default: from the suffix of --out, else terminal)")
    add("--out", metavar="FILE", help="write it into a file: .md, .tex or .csv")
    add("--split", nargs="+", default=[], choices=TABLE_SPLITS, metavar="SPLIT", help=f"which classes: {splits}")
    add("--metric", nargs="+", default=[], metavar="METRIC", help="instead of the paper's, such as ace mce nll")
    methods = "only these, such as vanilla tcpt 'tcpt, temperature'"
    add("--method", nargs="+", default=[], metavar="METHOD", help=methods)
    add("--spread", action="store_true", help="with the standard deviation over seeds")
    add("--difference", action="store_true", help="with the paired difference to the plain tuner and its interval")
    add("--published", action="store_true", help="with the paper's printed numbers, and whether ours agree")
    add_shared(parser, "filter")


def run(args: argparse.Namespace) -> None:
    """Read the results, make the tables, and print or write them."""
    from calprompt.metrics import metric_info
    from calprompt.results.sources import read_source

    options = TableOptions(
        tuple(args.split), tuple(args.metric), tuple(args.method), args.spread, args.difference, args.published
    )
    wanted = filters(args)
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
        say(args.out)


def _rendered(tables: list[Table], form: str) -> str:
    from rich.console import Console

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
    console = output()
    for each in tables:
        print_table(each, console)
        console.print()
    if unfinished:
        say(f"{plural(len(unfinished), 'run')} without a result: {shorten(unfinished)}")
