"""The table of a run: what it reached on base and novel classes, and on other data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

from calprompt.commands.console import output

if TYPE_CHECKING:
    from calprompt.results import Run

COLUMNS = {"accuracy": "accuracy", "ece": "ECE", "ace": "ACE", "mce": "MCE", "confidence_gap": "confidence\ngap"}
PARTS = ("base", "novel", "all")
CAPTION = (
    "percent; 10 bins; MCE is the textbook one, the largest gap of a bin; "
    "confidence gap is mean confidence minus accuracy"
)


def print_run(run: Run) -> None:
    """The table of a finished run, or what became of it, and its folder."""
    console = output()
    if run.status == "finished":
        console.print(results_table(run, run.title))
        for where, metrics in _groups(run).items():
            for part in (part for part in PARTS if "not_applicable" in metrics.get(part, {})):
                name = f"{where}/{part}" if where else part
                console.print(f"{name}: {metrics[part]['not_applicable']}", markup=False, soft_wrap=True)
    else:
        done = f"after {len(run.history())} of {run.record['config']['training']['epochs']} epochs"
        reason = f": {run.record['reason']}" if "reason" in run.record else ""
        console.print(f"{run.status} {done}{reason}", markup=False, soft_wrap=True)
    console.print(str(run.folder), markup=False, soft_wrap=True)


def results_table(run: Run, title: str) -> Table:
    """Base and novel, or all classes, tuned and zero-shot, in percent; then the same on other data."""
    table = Table(title=escape(title), caption=CAPTION, box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.title_justify = table.caption_justify = "left"
    table.add_column("")
    for column in ("images", "classes", *COLUMNS.values()):
        table.add_column(column, justify="right", overflow="fold", vertical="bottom")
    for where, metrics in _groups(run).items():
        if where:
            table.add_section()
            table.add_row(f"[bold]{escape(where)}[/bold]")
        for part in (part for part in PARTS if part in metrics):
            for name, values in ((part, metrics[part]), ("  zero-shot", metrics["zero_shot"][part])):
                counts = [str(values.get(count, "n/a")) for count in ("images", "classes")]
                table.add_row(name, *counts, *(_percent(values, metric) for metric in COLUMNS))
    return table


def _groups(run: Run) -> dict[str, Mapping[str, Any]]:
    """Metrics of the run itself, and by name of the other data it was evaluated on."""
    return {"": run.metrics, **{transfer.name: transfer.metrics for transfer in run.transfers}}


def _percent(values: dict[str, Any], metric: str) -> str:
    if metric not in values:
        return "n/a"
    return f"{100 * values[metric]:+.2f}" if metric == "confidence_gap" else f"{100 * values[metric]:.2f}"
