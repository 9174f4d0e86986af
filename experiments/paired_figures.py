"""Paired results as figures: gaps against zero-shot's, how far novel rises above base, and effects with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paired import SPLITS, Method, Number, PairedResults
from paired_tables import PLAIN, TCPT, UNTUNED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOSSES = {PLAIN: "cross-entropy", TCPT: "TCPT"}
STEPS: dict[str, tuple[Method, Method, str, str]] = {
    "cross-entropy minus zero-shot": (PLAIN, UNTUNED, "0.45", "o"),
    "TCPT minus cross-entropy": (TCPT, PLAIN, "tab:red", "D"),
}


def gap_figure(groups: Mapping[str, PairedResults], limits: tuple[float, float] = (-13, 28)) -> Figure:
    """Confidence minus accuracy after tuning against that of zero-shot: a point a tuner, dataset and half.

    Args:
        groups: Title -> results; a row of the figure each.
        limits: Of the axis of zero-shot's gap.
    """
    figure = _figure(8.4, 4.4 * len(groups))
    grid = figure.subplots(len(groups), 2, sharex=True, sharey=True, squeeze=False)
    for row, (title, results) in zip(grid, groups.items(), strict=True):
        shown = results.cases([UNTUNED, PLAIN, TCPT])
        for axes, (method, name) in zip(row, LOSSES.items(), strict=True):
            axes.axhline(0, color="0.6", linewidth=0.8)
            axes.axline((0, 0), slope=1, linestyle="--", color="0.3", linewidth=1, label="as zero-shot")
            for split, colour, marker in (("base", "tab:blue", "o"), ("novel", "tab:orange", "^")):
                points = [(case[UNTUNED][0], case[method][0]) for (*_, of), case in shown.items() if of == split]
                axes.scatter(*zip(*points, strict=True), s=18, alpha=0.75, color=colour, marker=marker, label=split)
            axes.set_title(f"{name}, {title}", fontsize=11)
            axes.set_xlim(*limits)
            axes.grid(color="0.92")
            axes.set_axisbelow(True)
        row[0].set_ylabel("after tuning: confidence minus accuracy, %")
    for axes in grid[-1]:
        axes.set_xlabel("zero-shot: confidence minus accuracy, %")
    grid[0, 1].legend(loc="upper left", frameon=False)
    return figure


def halves_figure(results: PairedResults, datasets: Sequence[str], above: int, note: str) -> Figure:
    """How far tuning lifts the gap of novel classes above that of base classes, dataset by dataset.

    Args:
        results: Of all tuners on all datasets.
        datasets: From top to bottom.
        above: A line is drawn below so many of them.
        note: What the colours stand for.
    """
    shown = results.cases([UNTUNED, PLAIN, TCPT])

    def lifted(tuner: str, dataset: str, method: Method) -> float:
        base, novel = (shown[tuner, dataset, split] for split in SPLITS)
        return (novel[method][0] - base[method][0]) - (novel[UNTUNED][0] - base[UNTUNED][0])

    values = {m: [[lifted(tuner, dataset, m) for tuner in results.tuners] for dataset in datasets] for m in LOSSES}
    most = max(abs(value) for rows in values.values() for row in rows for value in row)
    figure = _figure(9.6, 5.2)
    for axes, (method, rows) in zip(figure.subplots(1, 2, sharey=True), values.items(), strict=True):
        drawn = axes.imshow(rows, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
        for y, row in enumerate(rows):
            for x, value in enumerate(row):
                colour = "white" if abs(value) > 0.6 * most else "black"
                label = f"{round(value):+d}" if round(value) else "0"
                axes.text(x, y, label, ha="center", va="center", fontsize=9, color=colour)
        axes.axhline(above - 0.5, color="black", linewidth=1.2)
        axes.set_xticks(range(len(results.tuners)), results.tuners, rotation=35, ha="right")
        axes.set_yticks(range(len(rows)), datasets)
        axes.set_title(LOSSES[method], fontsize=11)
    figure.suptitle("How far tuning lifts novel classes' over-confidence above that of base classes", fontsize=12)
    figure.colorbar(drawn, label=note, shrink=0.8)
    return figure


def effect_figure(groups: Mapping[str, PairedResults]) -> Figure:
    """What tuning does, and what TCPT changes of it, tuner by tuner, with intervals over datasets.

    Args:
        groups: Title -> results; a row of the figure each.
    """
    panels = [(metric, split) for metric in ("accuracy", "ece") for split in SPLITS]
    run = {title: [t for t in each.tuners if each.shared([PLAIN, TCPT], [t])] for title, each in groups.items()}
    figure = _figure(10.4, 3.5 * len(groups))
    tall = [len(tuners) + 1 for tuners in run.values()]
    grid = figure.subplots(len(groups), len(panels), sharey="row", height_ratios=tall, squeeze=False)
    for row, (title, results) in zip(grid, groups.items(), strict=True):
        for axes, (metric, split) in zip(row, panels, strict=True):
            axes.axvline(0, color="0.3", linewidth=0.8)
            for number, (first, second, colour, marker) in enumerate(STEPS.values()):
                for place, tuner in enumerate(run[title]):
                    found = results.difference(first, second, split, metric, results.shared([first, second], [tuner]))
                    if found is not None:
                        _bar(axes, found, place - 0.15 + 0.3 * number, colour, marker)
            axes.set_yticks(range(len(run[title])), run[title])
            axes.set_ylim(len(run[title]) - 0.5, -0.5)
            axes.grid(axis="x", color="0.92")
            axes.set_axisbelow(True)
            axes.set_title(f"{'ECE' if metric == 'ece' else metric}, {split} classes", fontsize=11)
        row[0].set_ylabel(title)
    for axes, (metric, _) in zip(grid[-1], panels, strict=True):
        axes.set_xlabel("points, right is better" if metric == "accuracy" else "points, left is better")
    figure.legend(handles=_legend(), loc="outside upper center", ncols=4, frameon=False)
    return figure


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D

    found = [
        Line2D([], [], color=colour, marker=marker, markersize=5, label=label)
        for label, (*_, colour, marker) in STEPS.items()
    ]
    mark: dict[str, Any] = {"marker": "s", "markersize": 5, "linestyle": "none", "color": "0.3"}
    for label, filled in (("clear of 0", "0.3"), ("not clear of 0", "white")):
        found.append(Line2D([], [], **mark, markerfacecolor=filled, label=label))
    return found


def _bar(axes: Axes, interval: Number, place: float, colour: str, marker: str) -> None:
    """A mark and a line; a filled mark is clear of 0."""
    filled = colour if interval.excludes_zero else "white"
    style: dict[str, Any] = {"color": colour, "markerfacecolor": filled, "markersize": 4, "linewidth": 1.4}
    axes.errorbar(interval.value, place, xerr=interval.half, fmt=marker, **style)
