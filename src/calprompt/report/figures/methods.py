"""Methods compared: a radar over datasets, effects against cross-entropy, and what `calprompt compare` draws.

A radar is easy to recognise and hard to read: areas depend on the order of the spokes, so `effects` says more with the
same numbers. It is like the paper's Figure 1; the smaller the footprint, the better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from calprompt.errors import NotFoundError, SettingError
from calprompt.evaluation.numbers import Number, dataset_means
from calprompt.metrics import metric_info
from calprompt.report.figures.style import (
    COLUMN,
    FAINT,
    INK,
    LARGE,
    PAGE,
    SMALL,
    SPLIT_COLOURS,
    Look,
    add_legend,
    add_note,
    looks,
    new_figure,
    panel_title,
    style,
)
from calprompt.results import selection
from calprompt.results.compare import MINUS, Comparison, Row
from calprompt.results.methods import dataset_name, method_order, plain_of, tuner_name
from calprompt.results.selection import sample_text
from calprompt.results.sources import ReportSource

MIN_SPOKES = 3  # spokes
RADAR_SIZE, RADAR_MARGIN = 1.9, 0.55  # inches: a radar, and the room for names above and below it
LEGEND_COLUMNS = 3  # of the legend


def radar(
    source: ReportSource, *, metric: str = "ece", methods: Sequence[str] | None = None, split: str | None = None
) -> Figure:
    """The radar of a source's rows, means over seeds."""
    panels: dict[str, dict[str, dict[str, float]]] = {}
    seeds: set[int] = set()
    for part in selection.check_split(source, split):
        rows = [row for row in source.measured.rows if row["split"] == part]
        values = selection.by_method(source, rows, metric, methods)
        panels[part] = {}
        for method in selection.chosen(methods, list(values)):
            of_dataset: dict[str, list[float]] = {}
            for (dataset, seed), value in values[method].items():
                of_dataset.setdefault(dataset_name(dataset), []).append(value)
                seeds.add(seed)
            panels[part][method] = {dataset: mean(each) for dataset, each in sorted(of_dataset.items())}
    datasets = {dataset for part in panels.values() for method in part.values() for dataset in method}
    note = (
        f"{selection.metric_label(metric)}; means over seeds; {sample_text(datasets=len(datasets), seeds=len(seeds))}"
    )
    return radar_figure(panels, note=note)


def radar_figure(panels: Mapping[str, Mapping[str, Mapping[str, float]]], *, note: str | None = None) -> Figure:
    """A radar per panel, with the same spokes and the same scale.

    Args:
        panels: Panel, such as base, -> method -> dataset -> value.
        note: Under the figure: what the values are, and of how much.

    Raises:
        SettingError: if there are fewer than three datasets.
    """
    datasets = list(dict.fromkeys(each for part in panels.values() for values in part.values() for each in values))
    if len(datasets) < MIN_SPOKES:
        raise SettingError(
            f"a radar needs results on at least {MIN_SPOKES} datasets, got {len(datasets)}: "
            + (", ".join(datasets) or "none")
        )
    every = looks(dict.fromkeys(method for part in panels.values() for method in part))
    most = max(value for part in panels.values() for values in part.values() for value in values.values())
    legend, below = 0.1 + 0.13 * -(-len(every) // LEGEND_COLUMNS), 0.22 if note else 0.06
    height = legend + len(panels) * (RADAR_SIZE + RADAR_MARGIN) + below
    figure = Figure(figsize=(COLUMN, height))
    for number, (name, part) in enumerate(panels.items()):
        bottom = height - legend - (number + 1) * (RADAR_SIZE + RADAR_MARGIN) + 0.2
        box = ((COLUMN - RADAR_SIZE) / 2 / COLUMN, bottom / height, RADAR_SIZE / COLUMN, RADAR_SIZE / height)
        axes = figure.add_axes(box, projection="polar")
        _radar(axes, part, datasets, every, most)
        title = panel_title(name)
        figure.text(0.02, (bottom + RADAR_SIZE + 0.12) / height, title, fontsize=LARGE, fontweight="bold", va="bottom")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=min(LEGEND_COLUMNS, len(every)))
    if note:
        figure.text(0.5, 0.04 / height, note, ha="center", va="bottom", fontsize=SMALL, color=FAINT)
    return figure


def _radar(
    axes: Axes, part: Mapping[str, Mapping[str, float]], datasets: Sequence[str], every: Mapping[str, Look], most: float
) -> None:
    angles = np.linspace(0, 2 * np.pi, len(datasets), endpoint=False)
    axes.set_theta_offset(np.pi / 2)  # type: ignore[attr-defined]
    axes.set_theta_direction(-1)  # type: ignore[attr-defined]
    for method, values in part.items():
        radii = np.array([values.get(dataset, np.nan) for dataset in datasets])
        look = every[method]
        closed = np.append(np.arange(len(datasets)), 0)
        axes.plot(angles[closed], radii[closed], markersize=2, linewidth=1.1, label=method, **look.line)
        if method == "TCPT" and np.isfinite(radii).all():
            axes.fill(angles, radii, color=look.color, alpha=0.12, linewidth=0)
    axes.set_ylim(0, most * 1.05)
    axes.set_xticks(angles, datasets, fontsize=SMALL)
    axes.tick_params(axis="x", pad=-2)
    for label, angle in zip(axes.get_xticklabels(), angles, strict=True):
        label.set_horizontalalignment(
            "center" if np.isclose(np.sin(angle), 0) else "left" if angle < np.pi else "right"
        )
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], prune="lower"))
    axes.tick_params(axis="y", labelsize=SMALL - 1, labelcolor=FAINT)
    axes.set_rlabel_position(180 / len(datasets))  # type: ignore[attr-defined]


PLAIN = "cross-entropy"


def effects(
    source: ReportSource, *, metric: str = "ece", methods: Sequence[str] | None = None, split: str | None = None
) -> Figure:
    """Differences of a source's rows from those of the same tuner with cross-entropy."""
    panels: dict[str, dict[str, dict[str, Number]]] = {}
    counts: set[int] = set()
    tuners = list(dict.fromkeys(row["tuner"] for row in source.measured.rows if row["model"] == "tuned"))
    for part in selection.check_split(source, split):
        panels[part] = {}
        for tuner in tuners:
            rows = [row for row in source.measured.rows if row["split"] == part and row["tuner"] == tuner]
            values = selection.by_method(source, rows, metric, methods)
            known = {selection.method_names(source, [row])[id(row)]: source.method(row) for row in rows}
            named = {known[name]: name for name in values}
            plain = {name: named[each] for name in values if (each := plain_of(known[name], named)) is not None}
            there = [name for name in plain if set(values[name]) & set(values[plain[name]])]
            for name in method_order(there):
                if methods is None or name in methods:
                    both = sorted(set(values[name]) & set(values[plain[name]]))
                    found = dataset_means({key: values[name][key] - values[plain[name]][key] for key in both})
                    counts.add(len(found))
                    panels[part].setdefault(name, {})[tuner_name(tuner)] = Number.over(found)
        order = methods or method_order(panels[part])
        panels[part] = {name: panels[part][name] for name in order if name in panels[part]}
    if not any(panels.values()):
        raise NotFoundError(f"{source.title} has nothing to compare with {PLAIN} on the same dataset and seed")
    info = metric_info(metric)
    better = {"lower": "left is better", "higher": "right is better", "zero": "signed"}[info.better]
    label = f"{info.label} minus that of {PLAIN}, " + ("points" if info.unit == "%" else info.unit)
    fewest = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"
    note = f"95 % intervals over {fewest} datasets; {better}; filled: clear of 0"
    return effect_figure(panels, label, note=note)


def effect_figure(
    panels: Mapping[str, Mapping[str, Mapping[str, Number]]], label: str, *, note: str | None = None
) -> Figure:
    """A line per method and group, such as its tuner, a panel per split; filled marks are clear of 0."""
    names = list(dict.fromkeys(name for methods in panels.values() for name in methods))
    groups = list(dict.fromkeys(g for methods in panels.values() for each in methods.values() for g in each))
    every = looks(groups)
    figure = new_figure(COLUMN, 0.62 + (0.2 + 0.11 * len(groups)) * len(names))
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (panel, methods) in zip(grid, panels.items(), strict=True):
        axes.axvline(0, color=INK, linewidth=0.7)
        for name, each in methods.items():
            for group, interval in each.items():
                place = names.index(name) + 0.7 * ((groups.index(group) + 0.5) / len(groups) - 0.5)
                look = every[group]
                colour = SPLIT_COLOURS.get(panel, look.color) if len(groups) == 1 else look.color
                style: dict[str, Any] = {
                    "color": colour,
                    "markerfacecolor": colour if interval.excludes_zero else "white",
                }
                axes.errorbar(
                    *(interval.value, place),
                    xerr=interval.half,
                    fmt=look.marker,
                    elinewidth=0.9,
                    label=group if name == next(iter(methods)) else None,
                    **style,
                )
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_title(panel_title(panel))
    if len(groups) > 1:
        add_legend(figure)
    if note:
        add_note(figure, f"{label}; {note}")
    return figure


METRICS = ("accuracy", "ece")


def compare_figure(comparison: Comparison) -> Figure:
    """A row of panels per split: each metric's values, then its paired differences to the first method."""
    rows = comparison.results.rows
    splits = list(dict.fromkeys(row.split for row in rows if row.metric == "ece"))  # the harmonic mean has none
    datasets = list(comparison.results.sizes)
    methods = comparison.methods
    look = looks(methods)
    height = 0.45 + len(splits) * (0.42 + 0.13 * len(datasets) * (len(methods) + 1)) + 0.12 * len(methods)
    with style():
        figure = new_figure(PAGE, max(1.7, height))
        grid = figure.subplots(len(splits), 2 * len(METRICS), squeeze=False, sharey="row")
        for line, split in zip(grid, splits, strict=True):
            for at, metric in enumerate(METRICS):
                found = [row for row in rows if (row.split, row.metric) == (split, metric)]
                levels, differences = line[2 * at], line[2 * at + 1]
                differences.axvline(0, color=INK, linewidth=0.7)
                _draw_rows(levels, [row for row in found if not row.is_difference], datasets, methods, look)
                _draw_rows(differences, [row for row in found if row.is_difference], datasets, methods, look)
                info = metric_info(metric)
                levels.set_title(f"{info.label}, {split}")
                levels.set_xlabel("%")
                better = "right" if info.better == "higher" else "left"
                differences.set_title(f"minus {methods[0]}" if len(methods[0]) < 16 else "minus the first")
                differences.set_xlabel(f"points, {better} is better")
            line[0].set_yticks(range(len(datasets)), list(map(dataset_name, datasets)))
            line[0].set_ylim(len(datasets) - 0.5, -0.5)
        _legend(figure, methods, look)
        add_note(figure, _sample(comparison))
    return figure


def _draw_rows(
    axes: Axes, rows: Sequence[Row], datasets: Sequence[str], methods: Sequence[str], look: dict[str, Look]
) -> None:
    """Numbers with their intervals, a band per dataset; a difference is filled if it is clear of 0."""
    for row in rows:
        method, minus, _ = row.method.partition(MINUS)
        place = datasets.index(row.dataset) + (methods.index(method) - (len(methods) - 1) / 2) * 0.8 / len(methods)
        colour, marker = look[method].color, look[method].marker
        if row.low is not None and row.high is not None:
            axes.plot([100 * row.low, 100 * row.high], [place, place], color=colour, linewidth=1.2)
        face = colour if not minus or row.number.excludes_zero else "white"
        axes.plot([100 * row.value], [place], color=colour, marker=marker, markerfacecolor=face, linestyle="none")
    axes.grid(axis="y", visible=False)


def _legend(figure: Figure, methods: Sequence[str], look: dict[str, Look]) -> None:
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
