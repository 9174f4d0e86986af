"""A radar: a metric of every method on every dataset, a spoke per dataset; the smaller the footprint, the better.

Like the paper's Figure 1. Radars are easy to recognise and hard to read: areas depend on the order of the spokes, so
the same numbers as `effects` say more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from calprompt.report.figures import selection
from calprompt.report.figures.style import COLUMN, FAINT, LARGE, SMALL, Look, looks, sample_text
from calprompt.results.names import dataset_name
from calprompt.results.sources import ReportSource

LEAST = 3  # spokes
SIDE, AROUND = 1.9, 0.55  # inches: a radar, and the room for names above and below it
COLUMNS = 3  # of the legend


def from_source(
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
    selection.need(
        len(datasets) >= LEAST,
        f"a radar needs results on at least {LEAST} datasets, got {len(datasets)}: {', '.join(datasets) or 'none'}",
    )
    every = looks(dict.fromkeys(method for part in panels.values() for method in part))
    most = max(value for part in panels.values() for values in part.values() for value in values.values())
    legend, below = 0.1 + 0.13 * -(-len(every) // COLUMNS), 0.22 if note else 0.06
    height = legend + len(panels) * (SIDE + AROUND) + below
    figure = Figure(figsize=(COLUMN, height))
    for number, (name, part) in enumerate(panels.items()):
        bottom = height - legend - (number + 1) * (SIDE + AROUND) + 0.2
        box = ((COLUMN - SIDE) / 2 / COLUMN, bottom / height, SIDE / COLUMN, SIDE / height)
        axes = figure.add_axes(box, projection="polar")
        _radar(axes, part, datasets, every, most)
        title = f"{name} classes" if name in ("base", "novel", "all") else name
        figure.text(0.02, (bottom + SIDE + 0.12) / height, title, fontsize=LARGE, fontweight="bold", va="bottom")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=min(COLUMNS, len(every)))
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
