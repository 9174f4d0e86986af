"""What every method changes against the plain tuner, on the same datasets and seeds, with intervals over datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from calprompt.errors import NotFoundError
from calprompt.metrics import metric_info
from calprompt.report.figures import selection
from calprompt.report.figures.style import COLUMN, INK, SPLIT_COLOURS, add_legend, add_note, looks, new_figure
from calprompt.results.intervals import Interval, by_dataset
from calprompt.results.methods import plain_of
from calprompt.results.names import method_order, tuner_name
from calprompt.results.sources import ReportSource

PLAIN = "cross-entropy"


def from_source(
    source: ReportSource, *, metric: str = "ece", methods: Sequence[str] | None = None, split: str | None = None
) -> Figure:
    """Differences of a source's rows from those of the same tuner with cross-entropy."""
    panels: dict[str, dict[str, dict[str, Interval]]] = {}
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
                    keys = [(tuner, *place) for place in sorted(set(values[name]) & set(values[plain[name]]))]
                    apart = {key: values[name][key[1:]] - values[plain[name]][key[1:]] for key in keys}
                    found = by_dataset(apart, keys)
                    counts.add(len(found))
                    panels[part].setdefault(name, {})[tuner_name(tuner)] = Interval.of(found)
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
    panels: Mapping[str, Mapping[str, Mapping[str, Interval]]], label: str, *, note: str | None = None
) -> Figure:
    """A line per method and group, such as its tuner, a panel per split; filled marks are clear of 0.

    Args:
        panels: Panel -> method -> group -> difference.
        label: Of the axis of differences.
        note: Under the figure.
    """
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
                style: dict[str, Any] = {"color": colour, "markerfacecolor": colour if interval.clear else "white"}
                axes.errorbar(
                    *(interval.mean, place),
                    xerr=interval.half,
                    fmt=look.marker,
                    elinewidth=0.9,
                    label=group if name == next(iter(methods)) else None,
                    **style,
                )
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_title(f"{panel} classes" if panel in SPLIT_COLOURS else panel)
    if len(groups) > 1:
        add_legend(figure)
    if note:
        add_note(figure, f"{label}; {note}")
    return figure
