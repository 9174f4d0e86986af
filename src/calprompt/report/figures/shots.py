"""Accuracy and calibration error against the number of training images per class. Like the paper's Figure 4a."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from calprompt.report.figures import selection
from calprompt.report.figures.selection import Point, read_series
from calprompt.report.figures.style import COLUMN, add_legend, add_note, looks, new_figure
from calprompt.results.names import loss_name, method_order, tuner_name
from calprompt.results.sources import ReportSource

METRICS = ("accuracy", "ece")


def from_source(source: ReportSource, *, methods: Sequence[str] | None = None, metric: str = "ece") -> Figure:
    """Curves of a source's rows."""
    tuners = {row["tuner"] for row in source.measured.rows}

    def group(row: Mapping[str, Any]) -> tuple[str, int] | None:
        name = loss_name(row["loss"]) if len(tuners) == 1 else f"{tuner_name(row['tuner'])}, {loss_name(row['loss'])}"
        return None if row.get("shots") is None or (methods and name not in methods) else (name, int(row["shots"]))

    series = read_series(source, group, ("accuracy", metric), "numbers of shots and methods")
    panels = {
        key: {
            name: {shots: point for (which, shots), point in points.items() if which == name}
            for name in method_order(name for name, _ in points)
        }
        for key, points in series.points.items()
    }
    return curve_figure(panels, "training images per class", note=series.note)


def curve_figure(
    panels: Mapping[tuple[str, str], Mapping[str, Mapping[float, Point]]], label: str, *, note: str | None = None
) -> Figure:
    """Curves with bars, a row per metric and a column per split.

    Args:
        panels: Split and metric -> method -> x -> point.
        label: Of the x axis.
        note: Under the figure.
    """
    splits = list(dict.fromkeys(split for split, _ in panels))
    metrics = list(dict.fromkeys(metric for _, metric in panels))
    every = looks(name for lines in panels.values() for name in lines)
    figure = new_figure(COLUMN, 0.45 + 1.2 * len(metrics))
    grid = figure.subplots(len(metrics), len(splits), sharex=True, sharey="row", squeeze=False)
    for (split, metric), lines in panels.items():
        axes = grid[metrics.index(metric), splits.index(split)]
        places = sorted({x for line in lines.values() for x in line})
        for number, (name, line) in enumerate(lines.items()):
            shift = 0.06 * (number - (len(lines) - 1) / 2)  # so that bars do not cover each other
            x = [places.index(each) + shift for each in sorted(line)]
            y = [line[each].mean for each in sorted(line)]
            spread = [line[each].spread or 0 for each in sorted(line)]
            axes.errorbar(x, y, yerr=spread, label=name, elinewidth=0.7, capsize=1.5, **every[name].line)
        axes.set_xticks(range(len(places)), [f"{each:g}" for each in places])
        if metric == metrics[0]:
            axes.set_title(f"{split} classes")
        if split == splits[0]:
            axes.set_ylabel(selection.metric_label(metric))
        if metric == metrics[-1]:
            axes.set_xlabel(label)
    add_legend(figure)
    if note:
        add_note(figure, note)
    return figure
