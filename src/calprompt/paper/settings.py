"""Accuracy and calibration error over settings: shots (Figure 4a), initial phrases (4b), and the weights of TCPT.

Weights are read from the objective of a run, such as `ce + margin(alpha=0.2, beta=0.01) + 5*moments`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from calprompt.evaluation.numbers import Number
from calprompt.report.figures.style import COLUMN, SMALL, add_legend, add_note, looks, new_figure
from calprompt.results import selection
from calprompt.results.methods import loss_name, method_order, tuner_name
from calprompt.results.selection import Series, read_series
from calprompt.results.sources import ReportSource

X = TypeVar("X")
Panels = Mapping[tuple[str, str], Mapping[str, Mapping[X, Number]]]  # split and metric -> method -> x -> point


def shots(source: ReportSource, *, methods: Sequence[str] | None = None, metric: str = "ece") -> Figure:
    """Curves of a source's rows."""
    tuners = {row["tuner"] for row in source.measured.rows}

    def group(row: Mapping[str, Any]) -> tuple[str, int] | None:
        name = loss_name(row["loss"]) if len(tuners) == 1 else f"{tuner_name(row['tuner'])}, {loss_name(row['loss'])}"
        return None if row.get("shots") is None or (methods and name not in methods) else (name, int(row["shots"]))

    series = read_series(source, group, ("accuracy", metric), "numbers of shots and methods")
    return curve_figure(_by_method(series), "training images per class", note=series.note)


def _by_method(series: Series) -> Panels[Any]:
    """Numbers of (method, x) by method, and in it by x."""
    return {
        key: {
            name: {x: point for (which, x), point in points.items() if which == name}
            for name in method_order(name for name, _ in points)
        }
        for key, points in series.points.items()
    }


def _grid(
    panels: Mapping[tuple[str, str], Any], base: float, row: float, **shared: Any
) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    """A row of panels per metric and a column per split, with the inches of a row and of what is around them."""
    splits, metrics = (list(dict.fromkeys(key[i] for key in panels)) for i in (0, 1))
    figure = new_figure(COLUMN, base + row * len(metrics))
    grid = figure.subplots(len(metrics), len(splits), squeeze=False, **shared)
    return figure, {key: grid[metrics.index(key[1]), splits.index(key[0])] for key in panels}


def _is_outer(axes: Axes, side: str) -> bool:
    """Whether a panel is in the first or last row or column, such as "first_row"."""
    return bool(getattr(axes.get_subplotspec(), f"is_{side}")())


def curve_figure(panels: Panels[float], label: str, *, note: str | None = None) -> Figure:
    """Curves with bars, a row per metric and a column per split."""
    every = looks(name for lines in panels.values() for name in lines)
    figure, grid = _grid(panels, 0.45, 1.2, sharex=True, sharey="row")
    for (split, metric), lines in panels.items():
        axes = grid[split, metric]
        places = sorted({x for line in lines.values() for x in line})
        for number, (name, line) in enumerate(lines.items()):
            shift = 0.06 * (number - (len(lines) - 1) / 2)  # so that bars do not cover each other
            x = [places.index(each) + shift for each in sorted(line)]
            y = [line[each].value or 0 for each in sorted(line)]
            spread = [line[each].spread or 0 for each in sorted(line)]
            axes.errorbar(x, y, yerr=spread, label=name, elinewidth=0.7, capsize=1.5, **every[name].line)
        axes.set_xticks(range(len(places)), [f"{each:g}" for each in places])
        if _is_outer(axes, "first_row"):
            axes.set_title(f"{split} classes")
        if _is_outer(axes, "first_col"):
            axes.set_ylabel(selection.metric_label(metric))
        if _is_outer(axes, "last_row"):
            axes.set_xlabel(label)
    add_legend(figure)
    add_note(figure, note)
    return figure


def phrases(source: ReportSource, *, metric: str = "ece") -> Figure:
    """Dots of a source's rows."""

    def group(row: Mapping[str, Any]) -> tuple[str, str] | None:
        words = json.loads(row.get("options") or "{}").get("words")
        return None if not words else (loss_name(row["loss"]), str(words))

    series = read_series(source, group, ("accuracy", metric), "phrases and methods")
    return phrase_figure(_by_method(series), note=series.note)


def phrase_figure(panels: Panels[str], *, note: str | None = None) -> Figure:
    """Dots with bars: a line per phrase, a row per metric and a column per split."""
    phrases = list(dict.fromkeys(each for lines in panels.values() for line in lines.values() for each in line))
    every = looks(name for lines in panels.values() for name in lines)
    figure, grid = _grid(panels, 0.5, 0.32 + 0.17 * len(phrases), sharey=True)
    for (split, metric), lines in panels.items():
        axes = grid[split, metric]
        for number, (name, line) in enumerate(lines.items()):
            shift = 0.22 * (number - (len(lines) - 1) / 2)
            axes.errorbar(
                [line[each].value or 0 for each in phrases if each in line],
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
    add_note(figure, note)
    return figure


def alpha_beta(source: ReportSource, *, metric: str = "ece") -> Figure:
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
    panels: Mapping[tuple[str, str], Mapping[tuple[float, float], Number]],
    labels: tuple[str, str],
    *,
    note: str | None = None,
) -> Figure:
    """A map per metric and split, with its numbers; darker is more."""
    across, down = (sorted({place[i] for points in panels.values() for place in points}) for i in (0, 1))
    figure, grid = _grid(panels, 0.35, 0.38 + 0.32 * len(down), sharex=True, sharey=True)
    for (split, metric), points in panels.items():
        axes = grid[split, metric]
        values = np.full((len(down), len(across)), np.nan)
        for (x, y), point in points.items():
            values[down.index(y), across.index(x)] = point.value
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
        if _is_outer(axes, "last_row"):
            axes.set_xlabel(labels[0])
        if _is_outer(axes, "first_col"):
            axes.set_ylabel(labels[1])
    add_note(figure, note)
    return figure


def moment_weight(source: ReportSource, *, metric: str = "ece") -> Figure:
    """Curves of a source's rows."""

    def group(row: Mapping[str, Any]) -> float | None:
        found = tcpt_weights(str(row["loss"]))
        return None if found is None else found[2]

    series = read_series(source, group, ("accuracy", metric), "weights of the moment loss")
    panels = {key: {"TCPT": points} for key, points in series.points.items()}
    return curve_figure(panels, "weight of the moment loss", note=series.note)
