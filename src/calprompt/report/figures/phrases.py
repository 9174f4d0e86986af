"""Accuracy and calibration error from several initial phrases. Like the paper's Figure 4b."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from calprompt.report.figures import selection
from calprompt.report.figures.selection import Point, read_series
from calprompt.report.figures.style import COLUMN, add_legend, add_note, looks, new_figure
from calprompt.results.names import loss_name, method_order
from calprompt.results.sources import ReportSource


def from_source(source: ReportSource, *, metric: str = "ece") -> Figure:
    """Dots of a source's rows."""

    def group(row: Mapping[str, Any]) -> tuple[str, str] | None:
        words = selection.options_of(row).get("words")
        return None if not words else (loss_name(row["loss"]), str(words))

    series = read_series(source, group, ("accuracy", metric), "phrases and methods")
    panels = {
        key: {
            name: {words: point for (which, words), point in points.items() if which == name}
            for name in method_order(name for name, _ in points)
        }
        for key, points in series.points.items()
    }
    return phrase_figure(panels, note=series.note)


def phrase_figure(
    panels: Mapping[tuple[str, str], Mapping[str, Mapping[str, Point]]], *, note: str | None = None
) -> Figure:
    """Dots with bars: a line per phrase, a row per metric and a column per split.

    Args:
        panels: Split and metric -> method -> phrase -> point.
        note: Under the figure.
    """
    splits = list(dict.fromkeys(split for split, _ in panels))
    metrics = list(dict.fromkeys(metric for _, metric in panels))
    phrases = list(dict.fromkeys(each for lines in panels.values() for line in lines.values() for each in line))
    every = looks(name for lines in panels.values() for name in lines)
    figure = new_figure(COLUMN, 0.5 + (0.32 + 0.17 * len(phrases)) * len(metrics))
    grid = figure.subplots(len(metrics), len(splits), sharey=True, squeeze=False)
    for (split, metric), lines in panels.items():
        axes = grid[metrics.index(metric), splits.index(split)]
        for number, (name, line) in enumerate(lines.items()):
            shift = 0.22 * (number - (len(lines) - 1) / 2)
            axes.errorbar(
                [line[each].mean for each in phrases if each in line],
                [phrases.index(each) + shift for each in phrases if each in line],
                xerr=[line[each].spread or 0 for each in phrases if each in line],
                label=name,
                linestyle="none",
                elinewidth=0.7,
                color=every[name].color,
                marker=every[name].marker,
            )
        axes.set_yticks(range(len(phrases)), [f"“{each}”" for each in phrases])
        axes.set_ylim(len(phrases) - 0.5, -0.5)
        axes.set_xlabel(f"{selection.metric_label(metric)}, {split}")
    add_legend(figure)
    if note:
        add_note(figure, note)
    return figure
