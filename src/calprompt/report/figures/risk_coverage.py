"""Risk against coverage: the error rate if only the most confident share of the images is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

import numpy as np
from matplotlib.figure import Figure

from calprompt.metrics import Predictions, area_under_risk_coverage
from calprompt.metrics import risk_coverage as curve_of
from calprompt.metrics.inputs import Floats
from calprompt.report.figures import selection
from calprompt.report.figures.style import COLUMN, SMALL, add_legend, add_note, looks, new_figure, sample_text
from calprompt.results.sources import ReportSource

POINTS = 100


def from_source(
    source: ReportSource, *, methods: Sequence[str] | None = None, split: str | None = None, zero_shot: bool = False
) -> Figure:
    """Curves of a source's stored logits, means over runs."""
    panels, places = {}, set()
    for part in selection.check_split(source, split):
        stored = selection.stored_runs(source, part, methods=methods, zero_shot=zero_shot)
        panels[part] = {name: [run.sample for run in runs] for name, runs in stored.items()}
        places |= {(run.dataset, run.seed) for runs in stored.values() for run in runs}
    counts = sample_text(datasets=len({each for each, _ in places}), seeds=len({seed for _, seed in places}))
    return risk_coverage_figure(panels, note=f"means over {counts}; in brackets the area under the curve, %")


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
        axes.set_title(f"{panel} classes" if panel in ("base", "novel", "all") else panel)
        axes.set_xlim(0, 100)
        axes.set_xlabel("answered, %")
    grid[0].set_ylim(0, grid[0].get_ylim()[1] * 1.25)
    grid[0].set_ylabel("wrong among them, %")
    add_legend(figure)
    if note:
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
