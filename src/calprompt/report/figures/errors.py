"""Errors by confidence: how sure the model was when it was wrong.

Like the paper's Figure 3. The heights of a method's bars add up to its error rate, so mass at the right is
over-confidence, whatever the accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from calprompt.errors import SettingError
from calprompt.metrics import Predictions
from calprompt.metrics.binning import EqualWidth, check_n_bins, width_edges, width_index
from calprompt.metrics.inputs import Floats
from calprompt.report.figures import selection
from calprompt.report.figures.style import COLUMN, HATCHES, SMALL, add_legend, add_note, looks, new_figure, sample_text
from calprompt.results.sources import ReportSource

BINS, SURE = 10, 0.8


def from_source(
    source: ReportSource, *, split: str = "novel", methods: Sequence[str] | None = None, bins: int = BINS
) -> Figure:
    """Errors of a source's stored logits, means over runs."""
    stored = selection.stored_runs(source, split, methods=methods)
    runs = [run for group in stored.values() for run in group]
    images = sum(len(run.sample.labels) for run in next(iter(stored.values())))
    counts = sample_text(datasets=len({run.dataset for run in runs}), seeds=len({run.seed for run in runs}))
    note = f"{split} classes; {counts}; {images:,} predictions a method"
    return error_figure({name: [run.sample for run in group] for name, group in stored.items()}, bins=bins, note=note)


def error_figure(
    methods: Mapping[str, Sequence[Predictions]], *, bins: int = BINS, sure: float = SURE, note: str | None = None
) -> Figure:
    """Bars of errors by confidence, side by side.

    Args:
        methods: Method -> its runs, of which means are shown.
        bins: How many bins of equal width.
        sure: The legend says which share of the errors has at least this confidence.
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
    axes.axvspan(sure, 1, color="#F3F3F3", zorder=0, linewidth=0)
    width = 0.86 / bins / len(methods)
    for number, (name, runs) in enumerate(methods.items()):
        heights = np.mean([error_shares(run, bins) for run in runs], axis=0)
        above = np.mean([(run.confidence[~run.correct] >= sure).mean() if not run.correct.all() else 0 for run in runs])
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
    axes.text((1 + sure) / 2, 0.98 * top, f"≥ {sure:g}", ha="center", va="top", fontsize=SMALL)
    add_legend(figure, columns=1, title=f"of which with a confidence of {sure:g} or more", title_fontsize=SMALL)
    if note:
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
