"""Figures from rows of results and steps of training, over settings: shots, phrases, weights of TCPT, gradients, cost.

Shots are the paper's Figure 4a, initial phrases 4b. Weights are read from the objective of a run, such as
`ce + margin(alpha=0.2, beta=0.01) + 5*moments`. CPU seconds are those of all cores: what other programs did meanwhile
hardly changes them, unlike wall seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import mean
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from calprompt.diagnostics import RATIOS
from calprompt.errors import NotFoundError, Parameter, SettingError
from calprompt.evaluation.numbers import Number
from calprompt.evaluation.settings import NONE
from calprompt.paper.layouts import RATIOS as RATIO_NAMES
from calprompt.report.figures.style import COLOURS, COLUMN, HATCHES, INK, SMALL, add_legend, add_note, looks, new_figure
from calprompt.results import selection
from calprompt.results.methods import in_known_order, loss_name, method_order, tuner_name
from calprompt.results.selection import Series, read_series, sample_text
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
    """Dots with bars: a line per phrase, a row per metric and a column per split."""

    def group(row: Mapping[str, Any]) -> tuple[str, str] | None:
        words = json.loads(row.get("options") or "{}").get("words")
        return None if not words else (loss_name(row["loss"]), str(words))

    series = read_series(source, group, ("accuracy", metric), "phrases and methods")
    panels = _by_method(series)
    shown = list(dict.fromkeys(each for lines in panels.values() for line in lines.values() for each in line))
    every = looks(name for lines in panels.values() for name in lines)
    figure, grid = _grid(panels, 0.5, 0.32 + 0.17 * len(shown), sharey=True)
    for (split, metric), lines in panels.items():
        axes = grid[split, metric]
        for number, (name, line) in enumerate(lines.items()):
            shift = 0.22 * (number - (len(lines) - 1) / 2)
            axes.errorbar(
                [line[each].value or 0 for each in shown if each in line],
                [shown.index(each) + shift for each in shown if each in line],
                xerr=[line[each].spread or 0 for each in shown if each in line],
                label=name,
                linestyle="none",
                elinewidth=0.7,
                color=every[name].color,
                marker=every[name].marker,
            )
        axes.set_yticks(range(len(shown)), [f"“{each}”" for each in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlabel(f"{selection.metric_label(metric)}, {split}")
    add_legend(figure)
    add_note(figure, series.note)
    return figure


def alpha_beta(source: ReportSource, *, metric: str = "ece") -> Figure:
    """A map per metric and split, with its numbers; darker is more."""

    def group(row: Mapping[str, Any]) -> tuple[float, float] | None:
        found = tcpt_weights(str(row["loss"]))
        return None if found is None else found[:2]

    series = read_series(source, group, ("accuracy", metric), "pairs of alpha and beta")
    across, down = (sorted({place[i] for points in series.points.values() for place in points}) for i in (0, 1))
    figure, grid = _grid(series.points, 0.35, 0.38 + 0.32 * len(down), sharex=True, sharey=True)
    for (split, metric), points in series.points.items():
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
            axes.set_xlabel("alpha")
        if _is_outer(axes, "first_col"):
            axes.set_ylabel("beta")
    add_note(figure, series.note.replace("bars", "±"))
    return figure


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


def moment_weight(source: ReportSource, *, metric: str = "ece") -> Figure:
    """Curves of a source's rows."""

    def group(row: Mapping[str, Any]) -> float | None:
        found = tcpt_weights(str(row["loss"]))
        return None if found is None else found[2]

    series = read_series(source, group, ("accuracy", metric), "weights of the moment loss")
    panels = {key: {"TCPT": points} for key, points in series.points.items()}
    return curve_figure(panels, "weight of the moment loss", note=series.note)


POINTS = 120  # of a curve
WINDOW = 0.05  # of all steps, before and after a point


def gradients(source: ReportSource) -> Figure:
    """A panel per ratio: the median and the quantiles of the steps near each step, of all diagnosed runs together."""
    found = [(run, steps) for run in selection.tuned_runs(source) if (steps := run.steps())]
    if not found:
        raise NotFoundError(
            f"no run of {source.title} has steps.csv; train with ",
            Parameter("diagnose_every", 1, command="train"),
            " to get one",
        )
    datasets = {run.record["data"]["name"] for run, _ in found}
    count = sum(len(steps) for _, steps in found)
    note = (
        f"{sample_text(datasets=len(datasets), runs=len(found))}, {count:,} steps; line: median of steps nearby, band: "
        "10 to 90 % of them"
    )
    runs = [steps for _, steps in found]
    ratios = [ratio for ratio in RATIOS if any(ratio in step for steps in runs for step in steps)]
    if not ratios:
        raise SettingError("no step has a ratio of gradient norms")
    figure = new_figure(COLUMN, 0.5 + 0.72 * len(ratios))
    grid = figure.subplots(len(ratios), 1, sharex=True, squeeze=False)[:, 0]
    for axes, ratio, colour in zip(grid, ratios, COLOURS, strict=False):
        place, value = np.array(
            [(number, step[ratio]) for steps in runs for number, step in enumerate(steps, start=1) if ratio in step]
        ).T
        x = np.unique(np.linspace(1, place.max(), POINTS).round())
        reach = max(1.0, WINDOW * place.max())
        low, middle, high = np.array(
            [np.quantile(value[np.abs(place - each) <= reach], (0.1, 0.5, 0.9)) for each in x]
        ).T
        axes.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)
        axes.plot(x, middle, color=colour)
        axes.axhline(1, color="#222222", linewidth=0.6, linestyle=(0, (4, 2)))
        named = f"{RATIO_NAMES[ratio]}{'' if '/' in ratio else ' part'}"
        overall = np.quantile(value, (0.5, 0.1, 0.9))
        title = "{}: median {:.3g} [{:.2g}, {:.2g}]".format(named, *overall)
        axes.set_title(title, fontsize=SMALL, loc="left", pad=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    grid[-1].set_xlabel("step")
    add_note(figure, note)
    return figure


MEASURES = {
    "cpu_seconds_train": ("training, CPU seconds", 1.0),
    "seconds_epoch": ("wall seconds per epoch", 1.0),
    "peak_device_memory": ("peak GPU memory, MB", 1e-6),
    "peak_memory_train": ("peak memory, MB", 1e-6),
}


def cost(source: ReportSource, *, methods: Sequence[str] | None = None) -> Figure:
    """Bars of a source's runs: CPU seconds and, if there was a GPU, its memory, else the process's."""
    names: dict[int, str] = {}
    rows = []
    seen = set()
    for row in sorted(source.measured.rows, key=lambda row: row.get("diagnose_every") or 0):  # which takes time
        if row["model"] == "tuned" and (row["calibrator"] or NONE) == NONE:
            method = source.method(row)
            run = (method, row["dataset"], row["seed"])
            if run not in seen and (not methods or method.label in methods):
                names[id(row)] = method.label
                rows.append(row)
            seen.add(run)
    there = [name for name in MEASURES if any(row.get(name) is not None for row in rows)]
    if not there:
        raise NotFoundError(f"{source.title} has no times: its table was written without them")
    shown = [there[0], *[name for name in there if "memory" in name][:1]]
    tuners = in_known_order((row["tuner"] for row in rows), ("coop", "cocoop", "kgcoop"))
    panels: dict[str, dict[str, dict[str, list[float]]]] = {}
    for label, scale, name in ((*MEASURES[name], name) for name in shown):
        losses = panels[label] = {loss: {} for loss in method_order(names.values())}
        for tuner in tuners:
            for row in (row for row in rows if row["tuner"] == tuner and row.get(name) is not None):
                losses[names[id(row)]].setdefault(tuner_name(tuner), []).append(scale * row[name])
    counts = sample_text(datasets=len({row["dataset"] for row in rows}), runs=len(rows))
    return cost_figure(panels, note=f"means of {counts}; lines: least and most of them")


def cost_figure(
    panels: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]], *, note: str | None = None
) -> Figure:
    """A panel per measure, bars of methods side by side for every tuner."""
    every = looks(name for methods in panels.values() for name in methods)
    figure = new_figure(COLUMN, 1.95)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (label, methods) in zip(grid, panels.items(), strict=True):
        tuners = list(dict.fromkeys(tuner for values in methods.values() for tuner in values))
        width = 0.8 / len(methods)
        for number, (name, values) in enumerate(methods.items()):
            x = [tuners.index(tuner) - 0.4 + (number + 0.5) * width for tuner in values]
            means = [mean(each) for each in values.values()]
            ends = [[m - min(v) for m, v in zip(means, values.values(), strict=True)]]
            ends += [[max(v) - m for m, v in zip(means, values.values(), strict=True)]]
            axes.bar(
                x,
                means,
                width,
                yerr=ends,
                error_kw={"linewidth": 0.7, "ecolor": INK, "capsize": 1.5},
                color=every[name].color,
                hatch=HATCHES[number % len(HATCHES)],
                edgecolor="white",
                linewidth=0.4,
                label=name,
            )
        axes.set_xticks(range(len(tuners)), tuners)
        axes.set_ylabel(label)
        axes.grid(axis="x", visible=False)
    add_legend(figure)
    add_note(figure, note)
    return figure
