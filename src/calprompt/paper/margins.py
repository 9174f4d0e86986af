"""Margins under several losses, and how far they vary against the calibration error.

The paper's Figure 5 has the margin of an image as the logit of its class minus the largest other one; below 0 the
prediction is wrong. Its Figure 2 (right) has the largest logit minus the second largest, and the standard deviation of
that over the test images, a point for every run. Runs on one dataset are alike, so the interval of a correlation over
all runs is narrower than new datasets would bear out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from calprompt.errors import SettingError
from calprompt.metrics import expected_calibration_error
from calprompt.metrics.inputs import ArrayLike, Floats
from calprompt.report.figures.style import COLUMN, INK, SMALL, add_legend, add_note, looks, new_figure
from calprompt.results import selection
from calprompt.results.methods import dataset_name
from calprompt.results.selection import sample_text
from calprompt.results.sources import ReportSource

POINTS = 200  # of a cumulative distribution


def margins(source: ReportSource, *, split: str = "base", methods: Sequence[str] | None = None) -> Figure:
    """Margins of a source's stored logits, images of all datasets and seeds together."""
    panels, counts = selection.stored_panels(source, [split], methods)
    margins = {
        name: np.concatenate([label_margins(run.logits, run.sample.labels) for run in runs])
        for name, runs in panels[split].items()
    }
    images = len(next(iter(margins.values())))
    return margin_figure(margins, note=f"{split} classes; {counts}; {images:,} margins a method")


def label_margins(logits: ArrayLike, labels: ArrayLike) -> Floats:
    """The logit of each image's class minus the largest other one, [N].

    >>> label_margins([[3.0, 1.0, 0.0], [2.0, 5.0, 1.0]], [0, 0]).tolist()
    [2.0, -3.0]
    """
    array, index = np.array(logits, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if array.ndim != 2 or array.shape[1] < 2 or len(index) != len(array):
        raise SettingError(f"margins need logits [images, classes] and a label each, got {list(array.shape)}")
    rows = np.arange(len(array))
    own = array[rows, index].copy()
    array[rows, index] = -np.inf
    return np.asarray(own - array.max(axis=1))


def margin_figure(margins: Mapping[str, ArrayLike], *, note: str | None = None) -> Figure:
    """Cumulative distributions at the left, boxes at the right.

    Boxes are quartiles and the median, whiskers reach to the 5 % and 95 % quantiles.
    """
    values = {name: np.asarray(each, dtype=np.float64) for name, each in margins.items()}
    if not values or any(len(each) == 0 for each in values.values()):
        raise SettingError("a figure of margins needs at least one margin of each method")
    every = looks(values)
    figure = new_figure(COLUMN, 2.1)
    curve, boxes = figure.subplots(1, 2, width_ratios=(1.25, 1))
    shares = np.linspace(0, 1, POINTS)
    for name, each in values.items():
        curve.plot(
            np.quantile(each, shares), 100 * shares, color=every[name].color, linestyle=every[name].dash, label=name
        )
    curve.axvline(0, color=INK, linewidth=0.6)
    low, high = (np.quantile(np.concatenate(list(values.values())), share) for share in (0.005, 0.995))
    curve.set_xlim(low, high)
    curve.set_ylim(0, 100)
    curve.set_xlabel("margin, logits")
    curve.set_ylabel("images with less, %")
    drawn = boxes.bxp(
        [_box(each) for each in values.values()],
        showfliers=False,
        patch_artist=True,
        widths=0.6,
        medianprops={"color": INK, "linewidth": 1.2},
        whiskerprops={"linewidth": 0.7},
        capprops={"linewidth": 0.7},
    )
    for patch, name in zip(drawn["boxes"], values, strict=True):
        patch.set(facecolor=every[name].color, alpha=0.75, linewidth=0.6)
    boxes.axhline(0, color=INK, linewidth=0.6)
    medians = [f"{np.median(each):.2f}" for each in values.values()]
    boxes.set_xticks(range(1, len(values) + 1), medians)
    boxes.set_xlabel("median")
    boxes.set_ylabel("margin, logits")
    boxes.grid(axis="x", visible=False)
    add_legend(figure, curve)
    add_note(figure, note)
    return figure


def _box(values: Floats) -> dict[str, float]:
    keys = ("whislo", "q1", "med", "q3", "whishi")
    return dict(zip(keys, map(float, np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])), strict=True))


NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Spread:
    """Runs of one group, such as a dataset."""

    variability: Floats  # standard deviation of the margins of each run
    error: Floats  # its calibration error, as a fraction


def margin_spread(source: ReportSource, *, split: str | None = None, methods: Sequence[str] | None = None) -> Figure:
    """Margins and calibration errors of all runs of a source."""
    panels: dict[str, dict[str, Spread]] = {}
    for part in selection.check_split(source, split):
        stored = selection.stored_runs(source, part, methods=methods)
        points: dict[str, list[tuple[float, float]]] = {}
        for run in (run for group in stored.values() for run in group):
            point = margin_variability(run.logits), expected_calibration_error(run.sample)
            points.setdefault(dataset_name(run.dataset), []).append(point)
        panels[part] = {name: Spread(*np.array(values).T) for name, values in sorted(points.items())}
    runs = len([point for group in next(iter(panels.values())).values() for point in group.error])
    note = f"a point a run; {sample_text(datasets=len(next(iter(panels.values()))), runs=runs)}; r over all runs"
    return margin_spread_figure(panels, note=note)


def margin_variability(logits: ArrayLike) -> float:
    """The standard deviation over images of the largest logit minus the second largest.

    >>> margin_variability([[3.0, 1.0, 0.0], [2.0, 2.0, 1.0]])
    1.0
    """
    array = np.asarray(logits, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] < 2:
        raise SettingError(
            f"must have the shape [images, classes] with two classes, got {list(array.shape)}", parameter="logits"
        )
    top = np.partition(array, -2, axis=1)[:, -2:]
    return float((top[:, 1] - top[:, 0]).std())


def correlation(x: ArrayLike, y: ArrayLike) -> tuple[float, float, float] | None:
    """Pearson's correlation and its 95 % interval by Fisher's z; None for fewer than 4 points or a constant.

    >>> [round(value, 2) for value in correlation([1, 2, 3, 4, 5], [1, 2, 3, 5, 4])]
    [0.9, 0.09, 0.99]
    """
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(first) < 4 or not first.std() > 0 or not second.std() > 0:
        return None
    r = float(np.clip(np.corrcoef(first, second)[0, 1], -1, 1))
    if abs(r) >= 1 - 1e-12:
        return r, r, r
    half = NORMAL_95 / math.sqrt(len(first) - 3)
    return r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


def margin_spread_figure(panels: Mapping[str, Mapping[str, Spread]], *, note: str | None = None) -> Figure:
    """A scatter per panel, with a line of least squares and the correlation."""
    every = looks(name for groups in panels.values() for name in groups)
    figure = new_figure(COLUMN, 2.05)
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (panel, groups) in zip(grid, panels.items(), strict=True):
        for name, spread in groups.items():
            look = every[name]
            axes.scatter(
                *(spread.variability, 100 * spread.error),
                s=12,
                color=look.color,
                marker=look.marker,
                alpha=0.85,
                linewidth=0,
                label=name,
            )
        x = np.concatenate([spread.variability for spread in groups.values()])
        y = np.concatenate([spread.error for spread in groups.values()])
        found = correlation(x, y)
        if found is not None:
            slope, start = np.polyfit(x, 100 * y, 1)
            ends = np.array([x.min(), x.max()])
            axes.plot(ends, start + slope * ends, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
            text = "r = {:+.2f} [{:+.2f}, {:+.2f}]".format(*found)
        else:
            text = "too few runs for r"
        axes.set_title(f"{panel}, n = {len(x)}\n{text}", fontsize=SMALL + 0.5)
    grid[0].set_ylim(bottom=0)
    grid[0].set_ylabel("ECE, %")
    for axes in grid:
        axes.set_xlabel("s.d. of margins, logits")
    add_legend(figure)
    add_note(figure, note)
    return figure
