"""How far margins vary against the calibration error: a point for every run.

Like the paper's Figure 2 (right). The margin of an image is its largest logit minus the second largest, its
variability the standard deviation over the test images. Runs on one dataset are alike, so the interval of a correlation
over all runs is narrower than new datasets would bear out.
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
from calprompt.report.figures import selection
from calprompt.report.figures.style import COLUMN, INK, SMALL, add_legend, add_note, looks, new_figure, sample_text
from calprompt.results.names import dataset_name
from calprompt.results.sources import ReportSource

NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Spread:
    """Runs of one group, such as a dataset.

    Attributes:
        variability: Standard deviation of the margins of each run.
        error: Its calibration error, as a fraction.
    """

    variability: Floats
    error: Floats


def from_source(source: ReportSource, *, split: str | None = None, methods: Sequence[str] | None = None) -> Figure:
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
    """A scatter per panel, with a line of least squares and the correlation.

    Args:
        panels: Panel, such as base, -> group, such as a dataset, -> its runs.
        note: Under the figure.
    """
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
    if note:
        add_note(figure, note)
    return figure
