"""Make one table of all runs in a folder: a row per run, model, calibrator and split, with all metrics, settings,
versions and times. Runs that failed or are missing are rows with their status.

examples:
  calprompt results runs/main
  calprompt results runs/main --filter tuner=coop --filter split=novel --csv coop.csv
  calprompt results runs/main --merge other-machine.csv more-runs/ --csv all.csv
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from calprompt.cli.shared import add_shared, filters, output, say
from calprompt.errors import SettingError
from calprompt.files import check_output, write_output
from calprompt.progress import show_progress
from calprompt.registry import load_extension
from calprompt.report.table import PLAIN, Column, Number, Row, metric_column
from calprompt.report.table import Table as ShownTable
from calprompt.report.writers import plain_text, terminal_table
from calprompt.text import plural

if TYPE_CHECKING:
    from calprompt.results.table import Table

METRICS = ("accuracy", "ece", "ace", "nll")
UNFOLDED_ROWS = 500  # rows from which on a table is printed without folding its cells


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("out", metavar="OUT", help="folder of runs, or a table written before")
    add_shared(parser, "filter")
    add("--csv", metavar="FILE", help="write the table as CSV, compressed if it ends in .xz; - is standard output")
    add("--parquet", metavar="FILE", help="write the table as Parquet, which needs pyarrow")
    add("--no-times", action="store_true", help="leave out time and memory, so that equal runs give equal bytes")
    add("--merge", nargs="+", default=[], metavar="OTHER", help="tables or folders of other machines to add")
    add("--import", action="append", default=[], metavar="FILE", dest="imports", help="Python file with calibrators")
    add(
        "--calibrators",
        nargs="+",
        metavar="NAME",
        help="calibrators to measure (default: those of the folder's sweeps)",
    )


def run(args: argparse.Namespace) -> None:
    """Make the table, write it down, and print what is in it."""
    from calprompt.results.table import merge_tables, packed

    for path in args.imports:
        load_extension(path)
    wanted = filters(args)
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
        say(*filter(None, (args.csv, args.parquet)))


def _table(place: str, calibrators: list[str] | None, progress: Any) -> Table:
    from calprompt.results.collecting import results as collect
    from calprompt.results.table import read_table

    if Path(place).expanduser().is_dir():
        return collect(place, calibrators=calibrators, progress=progress)
    return read_table(place)


def _print(table: Table) -> None:
    """Means over datasets and seeds, by tuner, loss, calibrator and split; and how many runs are in which state."""
    console = output()
    if any(row.get("model") for row in table.rows):
        means = means_table(table)
        if len(means.rows) > UNFOLDED_ROWS:
            console.out(plain_text(means), highlight=False)
        else:
            console.print(terminal_table(means))
    say(*_status_lines(table))


def means_table(table: Table) -> ShownTable:
    """Means over the datasets and seeds of every method; zero-shot, which tuning does not change, once per tuner.

    Methods of one tuner, loss and calibrator that differ in other settings have rows of their own, which say in what.
    """
    from calprompt.data.splits import OWN
    from calprompt.metrics import metrics
    from calprompt.results.methods import methods_of

    rows = [row for row in table.rows if row.get("model") is not None]
    names = [name for name in metrics.shown("results", METRICS) if any(row.get(name) is not None for row in rows)]
    names = list(dict.fromkeys((*METRICS, *names)))
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row, method in zip(rows, methods_of(rows), strict=True):
        if row.get("accuracy") is None or (method.is_zero_shot and method.calibrator != "none"):
            continue
        loss = "" if method.is_zero_shot else f"{row.get('loss')}{', anchored' * (row.get('anchor') == 'true')}"
        validation = [f"validation {row['validation']}"] if row.get("validation") not in (None, OWN) else []
        settings = method.detail.removeprefix(" (").removesuffix(")") or ", ".join(validation)
        place = (row["tuner"], loss, row["model"], method.calibrator, row["split"], settings)
        groups.setdefault(place, []).append(row)
    by = ("tuner", "loss", "model", "calibrator", "split", *(("settings",) if any(key[-1] for key in groups) else ()))
    columns = [*(Column(name, name) for name in by), Column("rows", "rows", PLAIN, digits=0)]
    notes = sorted({f"; {row['validation']}: {row['note']}" for row in table.rows if row.get("note")})
    shown = []
    for key, found in groups.items():
        values = [[row[name] for row in found if row.get(name) is not None] for name in names]
        means = [Number(fmean(each) if each else None) for each in values]
        shown.append(Row((*key[: len(by)], Number(len(found)), *means)))
    columns += map(metric_column, names)
    return ShownTable("means", "", "".join(("means in percent, but for NLL", *notes)), tuple(columns), tuple(shown))


def _status_lines(table: Table) -> Iterator[str]:
    """How many runs have which status, and why some have no results."""
    status: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for number, row in enumerate(table.rows):
        name = str(row.get("run") or f"row {number}")
        status.setdefault(name, str(row.get("status")))
        if row.get("model") is None and row.get("status") != "finished":
            title = ", ".join(str(row[key]) for key in ("tuner", "loss", "data", "seed") if row.get(key) is not None)
            split = f", {row['split']}" if row.get("split") else ""
            reasons[f"{name}{split}"] = f"{row['status']}: {title or name}{split}" + (
                f": {row['reason']}" if row.get("reason") else ""
            )
    counts = Counter(status.values())
    notes = Counter({str(row.get("run")): str(row["note"]) for row in table.rows if row.get("note")}.values())
    yield f"{plural(len(table.rows), 'row')} of {plural(len(status), 'run')}: " + ", ".join(
        f"{count} {name}" for name, count in sorted(counts.items())
    )
    for note, count in sorted(notes.items()):
        yield f"{note}: {plural(count, 'run')}; fitted calibrators have seen the images they are measured on"
    shown = list(reasons.values())
    yield from shown[:10]
    if len(shown) > 10:
        yield f"… and {len(shown) - 10} more that are not finished"
