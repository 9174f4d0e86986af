"""Ratios of gradient norms over the steps of training, with their quantiles. Like the supplement's figure of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from calprompt.diagnostics import RATIOS
from calprompt.errors import NotFoundError, Parameter
from calprompt.report.figures import selection
from calprompt.report.figures.style import COLOURS, COLUMN, SMALL, add_note, new_figure, sample_text
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


def from_source(source: ReportSource) -> Figure:
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
    """A panel per ratio: the median and the quantiles of the steps near each step.

    Args:
        runs: Steps of each run, as `Run.steps()` has them.
        note: Under the figure.
    """
    ratios = [ratio for ratio in RATIOS if any(ratio in step for steps in runs for step in steps)]
    selection.need(bool(ratios), "no step has a ratio of gradient norms")
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
    if note:
        add_note(figure, note)
    return figure
