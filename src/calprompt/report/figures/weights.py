"""The weights of TCPT: a map over alpha and beta. Like the supplement's table of both.

Weights are read from the objective of a run, such as `ce + margin(alpha=0.2, beta=0.01) + 5*moments`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from calprompt.report.figures import selection
from calprompt.report.figures.selection import Point, read_series
from calprompt.report.figures.style import COLUMN, SMALL, add_note, new_figure
from calprompt.results.sources import ReportSource


def from_source(source: ReportSource, *, metric: str = "ece") -> Figure:
    """The map of a source's rows."""

    def group(row: Mapping[str, Any]) -> tuple[float, float] | None:
        found = tcpt_weights(str(row["loss"]))
        return None if found is None else found[:2]

    series = read_series(source, group, ("accuracy", metric), "pairs of alpha and beta")
    return map_figure(series.points, ("alpha", "beta"), note=series.note.replace("bars", "±"))


@cache
def tcpt_weights(loss: str) -> tuple[float, float, float] | None:
    """Alpha, beta and lambda of an objective that is TCPT's; None of others.

    >>> tcpt_weights("tcpt"), tcpt_weights("ce + margin(alpha=0.3) + 8*moments"), tcpt_weights("ce")
    ((0.1, 0.01, 5.0), (0.3, 0.01, 8.0), None)
    """
    from calprompt.losses import Margin, Moments, Objective

    terms = Objective.parse(loss).terms
    margin = next((term for term in terms if isinstance(term.loss, Margin)), None)
    moments = next((term for term in terms if isinstance(term.loss, Moments)), None)
    if margin is None or moments is None or len(terms) != 3 or margin.weight != 1:
        return None
    return float(margin.loss.alpha), float(margin.loss.beta), float(moments.weight)  # type: ignore[attr-defined]


def map_figure(
    panels: Mapping[tuple[str, str], Mapping[tuple[float, float], Point]],
    labels: tuple[str, str],
    *,
    note: str | None = None,
) -> Figure:
    """A map per metric and split, with its numbers; darker is more.

    Args:
        panels: Split and metric -> (x, y) -> point.
        labels: Of x and y.
        note: Under the figure.
    """
    splits = list(dict.fromkeys(split for split, _ in panels))
    metrics = list(dict.fromkeys(metric for _, metric in panels))
    across, down = (sorted({place[i] for points in panels.values() for place in points}) for i in (0, 1))
    figure = new_figure(COLUMN, 0.35 + (0.38 + 0.32 * len(down)) * len(metrics))
    grid = figure.subplots(len(metrics), len(splits), sharex=True, sharey=True, squeeze=False)
    for (split, metric), points in panels.items():
        axes = grid[metrics.index(metric), splits.index(split)]
        values = np.full((len(down), len(across)), np.nan)
        for (x, y), point in points.items():
            values[down.index(y), across.index(x)] = point.mean
        low, high = np.nanmin(values), np.nanmax(values)
        axes.imshow(values, cmap="cividis_r", aspect="auto", vmin=low, vmax=high + 1e-9)
        for (row, column), value in np.ndenumerate(values):
            if np.isnan(value):
                axes.text(column, row, "not run", ha="center", va="center", fontsize=SMALL - 1)
                continue
            spread = points[across[column], down[row]].spread
            text = f"{value:.1f}" + (f"\n±{spread:.1f}" if spread is not None else "")
            dark = value > (low + high) / 2
            axes.text(column, row, text, ha="center", va="center", fontsize=SMALL, color="white" if dark else "black")
        axes.grid(visible=False)
        axes.set_xticks(range(len(across)), [f"{each:g}" for each in across])
        axes.set_yticks(range(len(down)), [f"{each:g}" for each in down])
        axes.set_title(f"{selection.metric_label(metric)}, {split}", fontsize=SMALL + 0.5)
        if metric == metrics[-1]:
            axes.set_xlabel(labels[0])
        if split == splits[0]:
            axes.set_ylabel(labels[1])
    if note:
        add_note(figure, note)
    return figure
