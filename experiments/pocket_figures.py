"""The figures of docs/pocket-results.md, from experiments/pocket.csv.

python experiments/pocket_figures.py
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pocket_numbers import (
    FAR,
    NEAR,
    SPLITS,
    TUNERS,
    ZERO,
    Cases,
    Interval,
    Method,
    Results,
    cases,
    difference,
    read,
    shared,
)

from calprompt.report.reliability import save_figure

DOCS = Path(__file__).parents[1] / "docs"
TITLES = {"published": "published settings", "tuned": "settings for this model"}


def gaps() -> Figure:
    """Confidence minus accuracy after tuning against that of zero-shot: a point a tuner, dataset and half."""
    figure = Figure(figsize=(8.4, 8.8), layout="constrained")
    grid = figure.subplots(2, 2, sharex=True, sharey=True)
    for row, settings in zip(grid, TITLES, strict=True):
        shown = cases(read(f"{settings}_all"))
        for axes, name, title in zip(row, ("ce", "tcpt"), ("cross-entropy", "TCPT"), strict=True):
            axes.axhline(0, color="0.6", linewidth=0.8)
            axes.axline((0, 0), slope=1, linestyle="--", color="0.3", linewidth=1, label="as zero-shot")
            for split, colour, marker in (("base", "tab:blue", "o"), ("novel", "tab:orange", "^")):
                points = [(case[ZERO][0], case[name][0]) for (*_, of), case in shown.items() if of == split]
                axes.scatter(*zip(*points, strict=True), s=18, alpha=0.75, color=colour, marker=marker, label=split)
            axes.set_title(f"{title}, {TITLES[settings]}", fontsize=11)
            axes.set_xlim(-13, 28)
            axes.grid(color="0.92")
            axes.set_axisbelow(True)
        row[0].set_ylabel("after tuning: confidence minus accuracy, %")
    for axes in grid[1]:
        axes.set_xlabel("zero-shot: confidence minus accuracy, %")
    grid[0, 1].legend(loc="upper left", frameon=False)
    return figure


def halves() -> Figure:
    """How far tuning lifts the gap of novel classes above that of base classes, dataset by dataset."""
    shown = cases(read("tuned_all"))
    lifted = {
        name: [[_lifted(shown, tuner, dataset, name) for tuner in TUNERS] for dataset in (*NEAR, *FAR)]
        for name in ("ce", "tcpt")
    }
    most = max(abs(value) for rows in lifted.values() for row in rows for value in row)
    figure = Figure(figsize=(9.6, 5.2), layout="constrained")
    for axes, (name, rows) in zip(figure.subplots(1, 2, sharey=True), lifted.items(), strict=True):
        drawn = axes.imshow(rows, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
        for y, row in enumerate(rows):
            for x, value in enumerate(row):
                colour = "white" if abs(value) > 0.6 * most else "black"
                label = f"{round(value):+d}" if round(value) else "0"
                axes.text(x, y, label, ha="center", va="center", fontsize=9, color=colour)
        axes.axhline(len(NEAR) - 0.5, color="black", linewidth=1.2)
        axes.set_xticks(range(len(TUNERS)), TUNERS, rotation=35, ha="right")
        axes.set_yticks(range(len(rows)), (*NEAR, *FAR))
        axes.set_title({"ce": "cross-entropy", "tcpt": "TCPT"}[name], fontsize=11)
    figure.suptitle("How far tuning lifts novel classes' over-confidence above that of base classes", fontsize=12)
    figure.colorbar(drawn, label="points, against zero-shot; settings for this model", shrink=0.8)
    return figure


def _lifted(shown: Cases, tuner: str, dataset: str, method: str) -> float:
    base, novel = (shown[tuner, dataset, split] for split in SPLITS)
    return (novel[method][0] - base[method][0]) - (novel[ZERO][0] - base[ZERO][0])


def effects() -> Figure:
    """What tuning does, and what TCPT changes of it, tuner by tuner, with intervals over datasets."""
    panels = [(metric, split) for metric in ("accuracy", "ece") for split in SPLITS]
    figure = Figure(figsize=(10.4, 7.0), layout="constrained")
    read_all = {settings: read(f"{settings}_all") for settings in TITLES}
    run = {
        settings: [tuner for tuner in TUNERS if shared(results, [Method("ce"), Method("tcpt")], [tuner])]
        for settings, results in read_all.items()
    }
    tall = [len(tuners) + 1 for tuners in run.values()]
    grid = figure.subplots(len(TITLES), len(panels), sharey="row", height_ratios=tall)
    steps = {
        "cross-entropy minus zero-shot": (Method("ce"), Method(ZERO), "0.45", "o"),
        "TCPT minus cross-entropy": (Method("tcpt"), Method("ce"), "tab:red", "D"),
    }
    for row, settings in zip(grid, TITLES, strict=True):
        results, tuners = read_all[settings], run[settings]
        for axes, (metric, split) in zip(row, panels, strict=True):
            axes.axvline(0, color="0.3", linewidth=0.8)
            for number, (first, second, colour, marker) in enumerate(steps.values()):
                of = [_of_tuner(results, first, second, split, metric, tuner) for tuner in tuners]
                _bars(axes, of, 0.15 - 0.3 * number, colour, marker)
            axes.set_yticks(range(len(tuners)), tuners)
            axes.set_ylim(len(tuners) - 0.5, -0.5)
            axes.grid(axis="x", color="0.92")
            axes.set_axisbelow(True)
            name = {"accuracy": "accuracy", "ece": "ECE"}[metric]
            axes.set_title(f"{name}, {split} classes", fontsize=11)
        row[0].set_ylabel(TITLES[settings])
    for axes, (metric, _) in zip(grid[-1], panels, strict=True):
        axes.set_xlabel("points, right is better" if metric == "accuracy" else "points, left is better")
    handles = [
        Line2D([], [], color=colour, marker=marker, markersize=5, label=label)
        for label, (*_, colour, marker) in steps.items()
    ]
    for label, filled in (("clear of 0", "0.3"), ("not clear of 0", "white")):
        mark = {"marker": "s", "markersize": 5, "linestyle": "none", "color": "0.3", "markerfacecolor": filled}
        handles.append(Line2D([], [], **mark, label=label))
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
    return figure


def _of_tuner(results: Results, first: Method, second: Method, split: str, metric: str, tuner: str) -> Interval:
    interval = difference(results, first, second, split, metric, shared(results, [first, second], [tuner]))
    assert interval is not None
    return interval


def _bars(axes: Axes, intervals: list[Interval], above: float, colour: str, marker: str) -> None:
    """A mark and a line a row; filled marks are clear of 0."""
    for row, interval in enumerate(intervals):
        axes.errorbar(
            interval.mean,
            row - above,
            xerr=interval.half,
            fmt=marker,
            color=colour,
            markerfacecolor=colour if interval.clear else "white",
            markersize=4,
            linewidth=1.4,
        )


def main() -> None:
    save_figure(gaps(), DOCS / "pocket-gaps.png")
    save_figure(halves(), DOCS / "pocket-halves.png")
    save_figure(effects(), DOCS / "pocket-effects.png")


if __name__ == "__main__":
    main()
