"""Confidence against correctness, from stored logits: errors by confidence, risk against coverage, reliability.

Errors by confidence are like the paper's Figure 3: the heights of a method's bars add up to its error rate, so mass at
the right is over-confidence, whatever the accuracy. Reliability diagrams are like its Figure 2 (left): a row for base
and novel classes, a column for every method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

import numpy as np
from matplotlib.figure import Figure

from calprompt.errors import SettingError
from calprompt.metrics import Predictions, area_under_risk_coverage
from calprompt.metrics import risk_coverage as curve_of
from calprompt.metrics.binning import EqualWidth, check_n_bins, width_edges, width_index
from calprompt.metrics.inputs import Floats
from calprompt.report.figures.style import COLUMN, HATCHES, SMALL, add_legend, add_note, looks, new_figure, panel_title
from calprompt.report.reliability import BINS, reliability_figure, runs_panel
from calprompt.results import selection
from calprompt.results.sources import ReportSource

SURE = 0.8  # the legend says which share of the errors has at least this confidence


def errors(
    source: ReportSource, *, split: str = "novel", methods: Sequence[str] | None = None, bins: int = BINS
) -> Figure:
    """Errors of a source's stored logits, means over runs."""
    panels, counts = selection.stored_panels(source, [split], methods)
    samples = {name: [run.sample for run in runs] for name, runs in panels[split].items()}
    images = sum(len(sample.labels) for sample in next(iter(samples.values())))
    return error_figure(samples, bins=bins, note=f"{split} classes; {counts}; {images:,} predictions a method")


def error_figure(methods: Mapping[str, Sequence[Predictions]], *, bins: int = BINS, note: str | None = None) -> Figure:
    """Bars of errors by confidence, side by side.

    Args:
        methods: Method -> its runs, of which means are shown.
        bins: Number of bins of equal width.
        note: Under the figure.

    Raises:
        SettingError: if there are no methods.
    """
    if not methods:
        raise SettingError("errors by confidence need at least one method")
    check_n_bins(bins)
    edges = width_edges(bins)
    every = looks(methods)
    figure = new_figure(COLUMN, 2.25)
    axes = figure.subplots()
    axes.axvspan(SURE, 1, color="#F3F3F3", zorder=0, linewidth=0)
    width = 0.86 / bins / len(methods)
    for number, (name, runs) in enumerate(methods.items()):
        heights = np.mean([error_shares(run, bins) for run in runs], axis=0)
        above = np.mean([(run.confidence[~run.correct] >= SURE).mean() if not run.correct.all() else 0 for run in runs])
        left = edges[:-1] + 0.07 / bins + number * width
        axes.bar(
            left,
            100 * heights,
            width,
            align="edge",
            color=every[name].color,
            edgecolor="white",
            linewidth=0.3,
            hatch=HATCHES[number % len(HATCHES)],
            label=f"{name} ({100 * above:.1f} % of its errors)",
        )
    axes.set_xlim(0, 1)
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.set_xlabel("confidence")
    axes.set_ylabel("wrong, % of all images")
    axes.grid(axis="x", visible=False)
    top = axes.get_ylim()[1] * 1.1
    axes.set_ylim(0, top)
    axes.text((1 + SURE) / 2, 0.98 * top, f"≥ {SURE:g}", ha="center", va="top", fontsize=SMALL)
    add_legend(figure, columns=1, title=f"of which with a confidence of {SURE:g} or more", title_fontsize=SMALL)
    add_note(figure, note)
    return figure


def error_shares(sample: Predictions, bins: int = BINS) -> Floats:
    """The share of all images that is wrong with a confidence in each bin; together, the error rate.

    >>> from calprompt.metrics import predictions
    >>> error_shares(predictions([[0.9, 0.1], [0.6, 0.4]], [1, 0]), bins=2).tolist()
    [0.0, 0.5]
    """
    index = width_index(sample.confidence, bins, EqualWidth())
    return np.asarray(np.bincount(index[~sample.correct], minlength=bins) / len(sample.labels))


POINTS = 100


def risk_coverage(
    source: ReportSource, *, methods: Sequence[str] | None = None, split: str | None = None, zero_shot: bool = False
) -> Figure:
    """Curves of a source's stored logits, means over runs."""
    panels, counts = selection.stored_panels(source, selection.check_split(source, split), methods, zero_shot=zero_shot)
    samples = {
        part: {name: [run.sample for run in runs] for name, runs in stored.items()} for part, stored in panels.items()
    }
    return risk_coverage_figure(samples, note=f"means over {counts}; in brackets the area under the curve, %")


def risk_coverage_figure(
    panels: Mapping[str, Mapping[str, Sequence[Predictions]]], *, note: str | None = None
) -> Figure:
    """A panel per split, a curve per method.

    Args:
        panels: Panel -> method -> its runs, of which means are shown.
        note: Under the figure.
    """
    every = looks(name for methods in panels.values() for name in methods)
    figure = new_figure(COLUMN, 2.2)
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    shares = np.linspace(0.02, 1, POINTS)
    for axes, (panel, methods) in zip(grid, panels.items(), strict=True):
        lines = []
        for name, runs in methods.items():
            risk = np.mean([risk_at(run, shares) for run in runs], axis=0)
            area = mean(area_under_risk_coverage(run.confidence, run.correct) for run in runs)
            axes.plot(100 * shares, 100 * risk, color=every[name].color, linestyle=every[name].dash, label=name)
            lines.append(f"{name} [{100 * area:.1f}]")
        axes.text(0.03, 0.97, "\n".join(lines), transform=axes.transAxes, va="top", fontsize=SMALL - 0.5)
        axes.set_title(panel_title(panel))
        axes.set_xlim(0, 100)
        axes.set_xlabel("answered, %")
    grid[0].set_ylim(0, grid[0].get_ylim()[1] * 1.25)
    grid[0].set_ylabel("wrong among them, %")
    add_legend(figure)
    add_note(figure, note)
    return figure


def risk_at(sample: Predictions, coverage: Floats) -> Floats:
    """The error rate among the most confident share of the images, for several shares.

    >>> from calprompt.metrics import predictions
    >>> risk_at(predictions([[0.9, 0.1], [0.6, 0.4]], [0, 1]), np.array([0.5, 1.0])).tolist()
    [0.0, 0.5]
    """
    curve = curve_of(sample.confidence, sample.correct)
    place = np.searchsorted(curve.coverage, np.asarray(coverage) - 1e-12)
    return np.asarray(curve.risk[np.minimum(place, len(curve.risk) - 1)])


def reliability(
    source: ReportSource,
    *,
    methods: Sequence[str] | None = None,
    split: str | None = None,
    bins: int = BINS,
    zero_shot: bool = False,
) -> Figure:
    """The diagrams of a source's stored logits: images of all datasets and seeds together."""
    panels, counts = selection.stored_panels(source, selection.check_split(source, split), methods, zero_shot=zero_shot)
    drawn = {
        part: {name: runs_panel([run.sample for run in runs], n_bins=bins) for name, runs in stored.items()}
        for part, stored in panels.items()
    }
    return reliability_figure(drawn, note=f"images of {counts} together")
