"""The table of a run: what it reached on base and novel classes, and on other data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from calprompt.cli.console import output
from calprompt.cli.tables import create_table, format_metric

if TYPE_CHECKING:
    from calprompt.runs.folder import Run

COLUMNS = ("accuracy", "ece", "ace", "mce", "confidence_gap")
PARTS = ("base", "novel", "all")
CAPTION = (
    "percent; 10 bins; MCE (textbook) is the largest gap of a bin; confidence gap is mean confidence minus accuracy"
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
    from calprompt.metrics import metric_info

    labels = [metric_info(name).label.replace(" ", "\n") for name in COLUMNS]
    columns = [("", "left"), *((heading, "right") for heading in ("images", "classes", *labels))]
    table = create_table(columns, title=escape(title), caption=CAPTION, caption_justify="left", padding=(0, 0, 0, 1))
    for where, metrics in _groups(run).items():
        if where:
            table.add_section()
            table.add_row(f"[bold]{escape(where)}[/bold]")
        for part in (part for part in PARTS if part in metrics):
            for name, values in ((part, metrics[part]), ("  zero-shot", metrics["zero_shot"][part])):
                counts = [str(values.get(count, "n/a")) for count in ("images", "classes")]
                table.add_row(name, *counts, *(format_metric(metric, values.get(metric)) for metric in COLUMNS))
    return table


def _groups(run: Run) -> dict[str, Mapping[str, Any]]:
    """Metrics of the run itself, and by name of the other data it was evaluated on."""
    return {"": run.metrics, **{transfer.name: transfer.metrics for transfer in run.transfers}}
