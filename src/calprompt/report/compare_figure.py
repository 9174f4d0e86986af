"""A comparison as a figure: values of all methods with their intervals, and paired differences to the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from calprompt.metrics import metric_info
from calprompt.report.figures.style import FAINT, INK, PAGE, Look, add_note, looks, new_figure, style
from calprompt.report.tables.names import dataset_label
from calprompt.results.compare import Comparison
from calprompt.results.comparison import MINUS, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS = ("accuracy", "ece")


def compare_figure(comparison: Comparison, *, metrics: Sequence[str] = METRICS) -> Figure:
    """A row of panels per split: each metric's values, then its paired differences to the first method.

    Args:
        comparison: Of two methods or more.
        metrics: Which of accuracy, ece, ace, mce and weighted_mce.
    """
    rows = comparison.results.rows
    splits = list(dict.fromkeys(row.split for row in rows if row.metric in metrics and row.split in _measured(rows)))
    datasets = list(comparison.results.sizes)
    methods = comparison.methods
    look = looks(methods)
    height = 0.45 + len(splits) * (0.42 + 0.13 * len(datasets) * (len(methods) + 1)) + 0.12 * len(methods)
    with style():
        figure = new_figure(PAGE, max(1.7, height))
        grid = figure.subplots(len(splits), 2 * len(metrics), squeeze=False, sharey="row")
        for line, split in zip(grid, splits, strict=True):
            for at, metric in enumerate(metrics):
                found = [row for row in rows if (row.split, row.metric) == (split, metric)]
                levels, differences = line[2 * at], line[2 * at + 1]
                _levels(levels, [row for row in found if not row.is_difference], datasets, methods, look)
                _differences(differences, [row for row in found if row.is_difference], datasets, methods, look)
                info = metric_info(metric)
                levels.set_title(f"{info.label}, {split}")
                levels.set_xlabel("%")
                better = "right" if info.better == "higher" else "left"
                differences.set_title(f"minus {methods[0]}" if len(methods[0]) < 16 else "minus the first")
                differences.set_xlabel(f"points, {better} is better")
            line[0].set_yticks(range(len(datasets)), list(map(dataset_label, datasets)))
            line[0].set_ylim(len(datasets) - 0.5, -0.5)
        _legend(figure, methods, look)
        add_note(figure, _sample(comparison))
    return figure


def _measured(rows: Sequence[Row]) -> set[str]:
    """Splits that have all metrics, which the harmonic mean has not."""
    return {row.split for row in rows if row.metric == "ece"}


def _levels(
    axes: Axes, rows: Sequence[Row], datasets: Sequence[str], methods: Sequence[str], look: dict[str, Look]
) -> None:
    for row in rows:
        place = datasets.index(row.dataset) + _offset(methods.index(row.method), len(methods))
        _mark(axes, row, place, look[row.method], filled=True)
    axes.grid(axis="y", visible=False)


def _differences(
    axes: Axes, rows: Sequence[Row], datasets: Sequence[str], methods: Sequence[str], look: dict[str, Look]
) -> None:
    axes.axvline(0, color=INK, linewidth=0.7)
    for row in rows:
        method = row.method.partition(MINUS)[0]
        place = datasets.index(row.dataset) + _offset(methods.index(method), len(methods))
        _mark(axes, row, place, look[method], filled=row.excludes_zero)
    axes.grid(axis="y", visible=False)


def _mark(axes: Axes, row: Row, place: float, look: Look, *, filled: bool) -> None:
    if row.low is not None and row.high is not None:
        axes.plot([100 * row.low, 100 * row.high], [place, place], color=look.color, linewidth=1.2)
    face = look.color if filled else "white"
    axes.plot([100 * row.value], [place], color=look.color, marker=look.marker, markerfacecolor=face, linestyle="none")


def _offset(place: int, count: int) -> float:
    """Where a method stands within the band of its dataset."""
    return (place - (count - 1) / 2) * 0.8 / count


def _legend(figure: Figure, methods: Sequence[str], look: dict[str, Look]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=look[name].color, marker=look[name].marker, label=name) for name in methods]
    open_mark = Line2D([], [], color=FAINT, marker="o", markerfacecolor="white", linestyle="none")
    open_mark.set_label("difference not clear of 0")
    figure.legend(handles=[*handles, open_mark], loc="outside upper center", ncols=min(4, len(methods) + 1))


def _sample(comparison: Comparison) -> str:
    settings = comparison.results.settings
    seeds = "1 seed" if settings["seeds"] == 1 else f"mean of {settings['seeds']} seeds"
    counts = [f"{sum(part['images'] for part in each.values()):,}" for each in comparison.results.sizes.values()]
    images = " + ".join(counts)
    return (
        f"{images} test images, the same for all; {seeds}; lines: 95 % intervals from {settings['resamples']} "
        "resamples of images and seeds"
    )
