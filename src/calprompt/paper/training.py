"""Training itself: time and memory, tuner by tuner, and ratios of gradient norms over the steps. Like the supplement's.

CPU seconds are those of all cores. What other programs did meanwhile hardly changes them, unlike wall seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from calprompt.diagnostics import RATIOS
from calprompt.errors import NotFoundError, Parameter, SettingError
from calprompt.report.figures.style import COLOURS, COLUMN, HATCHES, INK, SMALL, add_legend, add_note, looks, new_figure
from calprompt.results import selection
from calprompt.results.methods import NONE, in_known_order, method_order, tuner_name
from calprompt.results.selection import sample_text
from calprompt.results.sources import ReportSource

TITLES = {
    "rho_margin": "margin: mean / variance part",
    "rho_mom": "moments: mean / covariance part",
    "rho_mom/margin": "moments / margin",
    "rho_margin/CE": "margin / cross-entropy",
    "rho_mom/CE": "moments / cross-entropy",
}
POINTS = 120  # of a curve
WINDOW = 0.05  # of all steps, before and after a point


def gradients(source: ReportSource) -> Figure:
    """Ratios of a source's runs that were diagnosed, all of their steps together."""
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
    return gradient_figure([steps for _, steps in found], note=note)


def gradient_figure(runs: Sequence[Sequence[Mapping[str, float]]], *, note: str | None = None) -> Figure:
    """A panel per ratio: the median and the quantiles of the steps near each step."""
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
        overall = np.quantile(value, (0.5, 0.1, 0.9))
        title = "{}: median {:.3g} [{:.2g}, {:.2g}]".format(TITLES[ratio], *overall)
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
    for name in shown:
        label, scale = MEASURES[name]
        panels[label] = {}
        for loss in method_order(names.values()):
            panels[label][loss] = {
                tuner_name(tuner): values
                for tuner in tuners
                if (
                    values := [
                        scale * row[name]
                        for row in rows
                        if row["tuner"] == tuner and names[id(row)] == loss and row.get(name) is not None
                    ]
                )
            }
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
