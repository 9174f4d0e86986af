"""`calprompt results`: one table of all runs in a folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calprompt.cli.console import output, show_progress
from calprompt.cli.flags import describe
from calprompt.errors import SettingError
from calprompt.files import check_output, write_output
from calprompt.registry import load_extension

if TYPE_CHECKING:
    from calprompt.results.table import Table

EXAMPLES = """\
  calprompt results runs/main
  calprompt results runs/main --filter tuner=coop --filter split=novel --csv coop.csv
  calprompt results runs/main --merge other-machine.csv more-runs/ --csv all.csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `results` to its parser."""
    describe(
        parser,
        "Make one table of all runs in a folder: a row per run, model, calibrator and split, with all\n"
        "metrics, settings, versions and times. Runs that failed or are missing are rows with their status.",
        EXAMPLES,
    )
    parser.set_defaults(command=results)
    add = parser.add_argument
    add("out", metavar="OUT", help="folder of runs, or a table that was written before")
    add("--filter", action="append", default=[], metavar="KEY=VALUE", help="only rows with this value in a column")
    add("--csv", metavar="FILE", help="write the table as CSV, compressed if it ends in .xz; - is standard output")
    add("--parquet", metavar="FILE", help="write the table as Parquet, which needs pyarrow")
    add("--no-times", action="store_true", help="without time and memory: the same runs are the same bytes")
    add("--merge", nargs="+", default=[], metavar="OTHER", help="tables or folders of other machines to add")
    add("--import", action="append", default=[], metavar="FILE", dest="imports", help="Python file of calibrators")
    add("--calibrators", nargs="+", metavar="NAME", help="what to measure with (default: those of the folder's sweeps)")


def results(args: argparse.Namespace) -> None:
    """Make the table, write it down, and print what is in it."""
    from calprompt.results.table import merge_tables, packed

    for path in args.imports:
        load_extension(path)
    wanted = dict(filter_pair(text) for text in args.filter)
    for name in ("csv", "parquet"):
        if getattr(args, name) not in (None, "-"):
            check_output(getattr(args, name), parameter=name)
    if args.calibrators is not None and not any(Path(place).expanduser().is_dir() for place in (args.out, *args.merge)):
        raise SettingError("measures runs again, and a table has none; give a folder of runs", parameter="calibrators")
    with show_progress() as progress:
        tables = [_table(place, args.calibrators, progress) for place in (args.out, *args.merge)]
    table = (merge_tables(tables) if args.merge else tables[0].sorted()).filter(**wanted)
    times = not args.no_times
    if args.csv == "-":
        sys.stdout.write(table.to_csv(times=times).decode())
    elif args.csv is not None:
        write_output(Path(args.csv).expanduser(), packed(table.to_csv(times=times), args.csv))
    if args.parquet is not None:
        write_output(Path(args.parquet).expanduser(), table.to_parquet(times=times))
    if args.csv != "-":
        _print(table)
        for path in filter(None, (args.csv, args.parquet)):
            output().print(path, markup=False, soft_wrap=True)


def _table(place: str, calibrators: list[str] | None, progress: Any) -> Table:
    from calprompt.results.collecting import results as collect
    from calprompt.results.table import read_table

    if Path(place).expanduser().is_dir():
        return collect(place, calibrators=calibrators, progress=progress)
    return read_table(place)


def filter_pair(text: str) -> tuple[str, str]:
    """Column and value of a --filter."""
    """Column and value of a --filter."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise SettingError(f"--filter takes KEY=VALUE, such as tuner=coop; got {text!r}")
    return name, value


def _print(table: Table) -> None:
    """Means over datasets and seeds, by tuner, loss, calibrator and split; and how many runs are in which state."""
    from calprompt.cli.results_table import means_table, status_lines

    console = output()
    if any(row.get("model") for row in table.rows):
        console.print(means_table(table))
    for line in status_lines(table):
        console.print(line, markup=False, soft_wrap=True)
