"""Time and memory of training, tuner by tuner. Like the supplement's table of both.

CPU seconds are those of all cores. What other programs did meanwhile hardly changes them, unlike wall seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from matplotlib.figure import Figure

from calprompt.errors import NotFoundError
from calprompt.report.figures.style import COLUMN, HATCHES, INK, add_legend, add_note, looks, new_figure, sample_text
from calprompt.results.names import NONE, in_known_order, method_order, tuner_name
from calprompt.results.sources import ReportSource

MEASURES = {
    "cpu_seconds_train": ("training, CPU seconds", 1.0),
    "seconds_epoch": ("wall seconds per epoch", 1.0),
    "peak_device_memory": ("peak GPU memory, MB", 1e-6),
    "peak_memory_train": ("peak memory, MB", 1e-6),
}


def from_source(source: ReportSource, *, methods: Sequence[str] | None = None) -> Figure:
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
    """A panel per measure, bars of methods side by side for every tuner.

    Args:
        panels: Measure -> method -> tuner -> values of its runs.
        note: Under the figure.
    """
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
    if note:
        add_note(figure, note)
    return figure
