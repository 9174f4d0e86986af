"""Margins under several losses: their cumulative distribution, and box plots.

Like the paper's Figure 5. The margin of an image is the logit of its class minus the largest other one; below 0 the
prediction is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from calprompt.errors import SettingError
from calprompt.metrics.inputs import ArrayLike, Floats
from calprompt.report.figures import selection
from calprompt.report.figures.style import COLUMN, INK, add_legend, add_note, looks, new_figure, sample_text
from calprompt.results.sources import ReportSource

POINTS = 200  # of a cumulative distribution


def from_source(source: ReportSource, *, split: str = "base", methods: Sequence[str] | None = None) -> Figure:
    """Margins of a source's stored logits, images of all datasets and seeds together."""
    stored = selection.stored_runs(source, split, methods=methods)
    runs = [run for group in stored.values() for run in group]
    margins = {
        name: np.concatenate([label_margins(run.logits, run.sample.labels) for run in group])
        for name, group in stored.items()
    }
    counts = sample_text(datasets=len({run.dataset for run in runs}), seeds=len({run.seed for run in runs}))
    images = len(next(iter(margins.values())))
    return margin_figure(margins, note=f"{split} classes; {counts}; {images:,} margins a method")


def label_margins(logits: ArrayLike, labels: ArrayLike) -> Floats:
    """The logit of each image's class minus the largest other one, [N].

    >>> label_margins([[3.0, 1.0, 0.0], [2.0, 5.0, 1.0]], [0, 0]).tolist()
    [2.0, -3.0]
    """
    array, index = np.array(logits, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if array.ndim != 2 or array.shape[1] < 2 or len(index) != len(array):
        raise SettingError(f"margins need logits [images, classes] and a label each, got {list(array.shape)}")
    rows = np.arange(len(array))
    own = array[rows, index].copy()
    array[rows, index] = -np.inf
    return np.asarray(own - array.max(axis=1))


def margin_figure(margins: Mapping[str, ArrayLike], *, note: str | None = None) -> Figure:
    """Cumulative distributions at the left, boxes at the right.

    Boxes are quartiles and the median, whiskers reach to the 5 % and 95 % quantiles.

    Args:
        margins: Method -> margins of its images.
        note: Under the figure.

    Raises:
        SettingError: if there are no margins.
    """
    values = {name: np.asarray(each, dtype=np.float64) for name, each in margins.items()}
    if not values or any(len(each) == 0 for each in values.values()):
        raise SettingError("a figure of margins needs at least one margin of each method")
    every = looks(values)
    figure = new_figure(COLUMN, 2.1)
    curve, boxes = figure.subplots(1, 2, width_ratios=(1.25, 1))
    shares = np.linspace(0, 1, POINTS)
    for name, each in values.items():
        curve.plot(
            np.quantile(each, shares), 100 * shares, color=every[name].color, linestyle=every[name].dash, label=name
        )
    curve.axvline(0, color=INK, linewidth=0.6)
    low, high = (np.quantile(np.concatenate(list(values.values())), share) for share in (0.005, 0.995))
    curve.set_xlim(low, high)
    curve.set_ylim(0, 100)
    curve.set_xlabel("margin, logits")
    curve.set_ylabel("images with less, %")
    drawn = boxes.bxp(
        [_box(each) for each in values.values()],
        showfliers=False,
        patch_artist=True,
        widths=0.6,
        medianprops={"color": INK, "linewidth": 1.2},
        whiskerprops={"linewidth": 0.7},
        capprops={"linewidth": 0.7},
    )
    for patch, name in zip(drawn["boxes"], values, strict=True):
        patch.set(facecolor=every[name].color, alpha=0.75, linewidth=0.6)
    boxes.axhline(0, color=INK, linewidth=0.6)
    medians = [f"{np.median(each):.2f}" for each in values.values()]
    boxes.set_xticks(range(1, len(values) + 1), medians)
    boxes.set_xlabel("median")
    boxes.set_ylabel("margin, logits")
    boxes.grid(axis="x", visible=False)
    add_legend(figure, curve)
    if note:
        add_note(figure, note)
    return figure


def _box(values: Floats) -> dict[str, float]:
    keys = ("whislo", "q1", "med", "q3", "whishi")
    return dict(zip(keys, map(float, np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])), strict=True))
