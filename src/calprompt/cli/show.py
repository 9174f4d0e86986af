"""Print the table of a run, as 'calprompt train' and 'calprompt transfer' print it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calprompt.cli.shared import PARTS, output, say
from calprompt.report.table import PLAIN, Column, Number, Row, Table, metric_column
from calprompt.report.writers import terminal_table

if TYPE_CHECKING:
    from rich.table import Table as Picture

    from calprompt.runs.folder import Run

COLUMNS = ("accuracy", "ece", "ace", "mce", "confidence_gap")
CAPTION = (
    "percent; 10 bins; MCE (textbook) is the largest gap of a bin; confidence gap is mean confidence minus accuracy"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="folder of a run, such as runs/coop-photos-16shot-seed1-0123456789ab"
    )


def run(args: argparse.Namespace) -> None:
    """Print the results in a run folder."""
    from calprompt.runs.folder import load_run

    print_run(load_run(args.run))


def print_run(run: Run) -> None:
    """The table of a finished run, or its status, and its folder."""
    console = output()
    if run.status == "finished":
        console.print(results_table(run, run.title))
        for where, metrics in _groups(run).items():
            for part in (part for part in PARTS if "not_applicable" in metrics.get(part, {})):
                name = f"{where}/{part}" if where else part
                say(f"{name}: {metrics[part]['not_applicable']}")
    else:
        done = f"after {len(run.history())} of {run.record['config']['training']['epochs']} epochs"
        reason = f": {run.record['reason']}" if "reason" in run.record else ""
        say(f"{run.status} {done}{reason}")
    say(run.folder)


def results_table(run: Run, title: str) -> Picture:
    """Base and novel, or all classes, tuned and zero-shot, in percent; then the same on other data."""
    counts = ("images", "classes")
    columns = [Column("part", ""), *(Column(name, name, PLAIN, digits=0) for name in counts)]
    columns += [replace(column, label=column.label.replace(" ", "\n")) for column in map(metric_column, COLUMNS)]
    rows = []
    for where, metrics in _groups(run).items():
        for part in (part for part in PARTS if part in metrics):
            for name, values in ((part, metrics[part]), ("  zero-shot", metrics["zero_shot"][part])):
                rows.append(Row((name, *(Number(values.get(each)) for each in (*counts, *COLUMNS))), group=where))
    table = Table("run", title, CAPTION, tuple(columns), tuple(rows))
    return terminal_table(table, headings=True, padding=(0, 0, 0, 1))


def _groups(run: Run) -> dict[str, Mapping[str, Any]]:
    """Metrics of the run itself, and by name of the other data it was evaluated on."""
    return {"": run.metrics, **{transfer.name: transfer.metrics for transfer in run.transfers}}
