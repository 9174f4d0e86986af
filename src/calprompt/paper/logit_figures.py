"""Figures from stored logits: margins under several losses, how far they vary against ECE, and text features.

The paper's Figure 5 has the margin of an image as the logit of its class minus the largest other one; below 0 the
prediction is wrong. Its Figure 2 (right) has the largest logit minus the second largest, and the standard deviation of
that over the test images, a point for every run. Runs on one dataset are alike, so the interval of a correlation over
all runs is narrower than new datasets would bear out. Text features are those of the supplement's figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from calprompt.errors import NotFoundError, SettingError
from calprompt.metrics import expected_calibration_error
from calprompt.metrics.inputs import ArrayLike, Floats
from calprompt.report.figures.style import COLUMN, FAINT, INK, SMALL, add_legend, add_note, looks, new_figure
from calprompt.results import selection
from calprompt.results.methods import dataset_name
from calprompt.results.selection import sample_text
from calprompt.results.sources import ReportSource

POINTS = 200  # of a cumulative distribution
NORMAL_95 = 1.959964
BOX = ("whislo", "q1", "med", "q3", "whishi")  # whiskers, quartiles and the median


def margins(source: ReportSource, *, split: str = "base", methods: Sequence[str] | None = None) -> Figure:
    """Margins of a source's stored logits, images of all datasets and seeds together."""
    panels, counts = selection.stored_panels(source, [split], methods)
    margins = {
        name: np.concatenate([label_margins(run.logits, run.sample.labels) for run in runs])
        for name, runs in panels[split].items()
    }
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
        [
            dict(zip(BOX, map(float, np.quantile(each, [0.05, 0.25, 0.5, 0.75, 0.95])), strict=True))
            for each in values.values()
        ],
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
    add_note(figure, note)
    return figure


def margin_spread(source: ReportSource, *, split: str | None = None, methods: Sequence[str] | None = None) -> Figure:
    """Margins and calibration errors of all runs of a source."""
    panels: dict[str, dict[str, Floats]] = {}
    for part in selection.check_split(source, split):
        stored = selection.stored_runs(source, part, methods=methods)
        points: dict[str, list[tuple[float, float]]] = {}
        for run in (run for group in stored.values() for run in group):
            point = margin_variability(run.logits), expected_calibration_error(run.sample)
            points.setdefault(dataset_name(run.dataset), []).append(point)
        panels[part] = {name: np.array(values) for name, values in sorted(points.items())}
    runs = len([point for points in next(iter(panels.values())).values() for point in points])
    note = f"a point a run; {sample_text(datasets=len(next(iter(panels.values()))), runs=runs)}; r over all runs"
    return margin_spread_figure(panels, note=note)


def margin_variability(logits: ArrayLike) -> float:
    """The standard deviation over images of the largest logit minus the second largest.

    >>> margin_variability([[3.0, 1.0, 0.0], [2.0, 2.0, 1.0]])
    1.0
    """
    array = np.asarray(logits, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] < 2:
        raise SettingError(
            f"must have the shape [images, classes] with two classes, got {list(array.shape)}", parameter="logits"
        )
    top = np.partition(array, -2, axis=1)[:, -2:]
    return float((top[:, 1] - top[:, 0]).std())


def correlation(x: ArrayLike, y: ArrayLike) -> tuple[float, float, float] | None:
    """Pearson's correlation and its 95 % interval by Fisher's z; None for fewer than 4 points or a constant.

    >>> [round(value, 2) for value in correlation([1, 2, 3, 4, 5], [1, 2, 3, 5, 4])]
    [0.9, 0.09, 0.99]
    """
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(first) < 4 or not first.std() > 0 or not second.std() > 0:
        return None
    r = float(np.clip(np.corrcoef(first, second)[0, 1], -1, 1))
    if abs(r) >= 1 - 1e-12:
        return r, r, r
    half = NORMAL_95 / math.sqrt(len(first) - 3)
    return r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


def margin_spread_figure(panels: Mapping[str, Mapping[str, Floats]], *, note: str | None = None) -> Figure:
    """A scatter per panel, with a line of least squares and the correlation.

    A panel has the runs [n, 2] of groups such as datasets: the variability of margins, and ECE as a fraction.
    """
    every = looks(name for groups in panels.values() for name in groups)
    figure = new_figure(COLUMN, 2.05)
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (panel, groups) in zip(grid, panels.items(), strict=True):
        for name, points in groups.items():
            look: dict[str, Any] = {"color": every[name].color, "marker": every[name].marker, "label": name}
            axes.scatter(points[:, 0], 100 * points[:, 1], s=12, alpha=0.85, linewidth=0, **look)
        x, y = np.concatenate(list(groups.values())).T
        found = correlation(x, y)
        if found is not None:
            slope, start = np.polyfit(x, 100 * y, 1)
            ends = np.array([x.min(), x.max()])
            axes.plot(ends, start + slope * ends, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
            text = "r = {:+.2f} [{:+.2f}, {:+.2f}]".format(*found)
        else:
            text = "too few runs for r"
        axes.set_title(f"{panel}, n = {len(x)}\n{text}", fontsize=SMALL + 0.5)
    grid[0].set_ylim(bottom=0)
    grid[0].set_ylabel("ECE, %")
    for axes in grid:
        axes.set_xlabel("s.d. of margins, logits")
    add_legend(figure)
    add_note(figure, note)
    return figure


def text_features(source: ReportSource, *, split: str = "novel", methods: Sequence[str] | None = None) -> Figure:
    """Text features of one dataset and seed of a source: the dataset with most classes, and its first seed."""
    stored = selection.stored_runs(source, split, methods=methods)
    classes = {(run.dataset, run.seed): run.logits.shape[1] for group in stored.values() for run in group}
    dataset, seed = min(classes, key=lambda place: (-classes[place], *place))
    runs = {name: next(r for r in group if (r.dataset, r.seed) == (dataset, seed)) for name, group in stored.items()}
    tuned = {name: run.text for name, run in runs.items() if run.text is not None and run.text.ndim == 2}
    frozen = next(iter(runs.values())).frozen_text
    if not tuned or frozen is None:
        raise NotFoundError(f"the runs of {source.title} have no text features of their own")
    note = f"t-SNE, all panels together; {dataset_name(dataset)}, {split} classes, seed {seed}: {len(frozen)} classes"
    return text_feature_figure(frozen, tuned, note=note)


def text_feature_figure(frozen: ArrayLike, tuned: Mapping[str, ArrayLike], *, note: str | None = None) -> Figure:
    """Text features before and after tuning, laid out in the plane by t-SNE: a point a class, a panel a method.

    All sets are laid out together, so that a point means the same in every panel: grey is the frozen feature of a
    class, a line leads to the tuned one. t-SNE keeps neighbours and nothing else, so each panel also says what was
    measured in the full space: the mean cosine of a class's two features, and the correlation of the cosines between
    all pairs of classes before and after, which is 1 if the classes keep their places to each other.
    """
    start = _unit(frozen)
    ends = {name: _unit(features) for name, features in tuned.items()}
    for name, features in ends.items():
        if features.shape != start.shape:
            raise SettingError(f"text features of {name} must be {list(start.shape)}, got {list(features.shape)}")
    if len(start) < 4 or not ends:
        raise SettingError(f"t-SNE needs at least 4 classes and one method, got {len(start)} and {len(ends)}")
    places = _layout(np.concatenate([start, *ends.values()])).reshape(1 + len(ends), len(start), 2)
    every = looks(ends)
    columns = 2 if len(ends) > 1 else 1
    rows = -(-len(ends) // columns)
    figure = new_figure(COLUMN, 0.3 + 1.75 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, (name, features), moved in zip(grid, ends.items(), places[1:], strict=False):
        look = every[name]
        axes.plot(*np.stack([places[0], moved]).transpose(2, 0, 1), color=FAINT, linewidth=0.4, zorder=1)
        axes.scatter(*places[0].T, s=9, facecolor="white", edgecolor=FAINT, linewidth=0.7, zorder=2)
        axes.scatter(*moved.T, s=9, color=look.color, marker=look.marker, linewidth=0, zorder=3)
        near = float((start * features).sum(axis=1).mean())
        axes.set_title(f"{name}\ncosine {near:.3f}, geometry r = {geometry(start, features):.3f}", fontsize=SMALL)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(True)
    for axes in grid[len(ends) :]:
        axes.set_visible(False)
    handles = [
        grid[0].scatter([], [], s=9, facecolor="white", edgecolor=FAINT, linewidth=0.7),
        grid[0].scatter([], [], s=9, color="#444444", linewidth=0),
    ]
    figure.legend(handles, ["frozen", "tuned"], loc="outside upper center", ncols=2, title="text features of a class")
    add_note(figure, note)
    return figure


def geometry(frozen: ArrayLike, tuned: ArrayLike) -> float:
    """Correlation of the cosines between all pairs of classes, before and after; 1 if classes keep their places.

    >>> features = [[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.0, 0.6, 0.8], [0.0, 0.0, 1.0]]
    >>> round(geometry(features, [[z, x, y] for x, y, z in features]), 6)  # turned as a whole
    1.0
    """
    pairs = np.triu_indices(len(np.asarray(frozen)), 1)
    first, second = ((features @ features.T)[pairs] for features in (_unit(frozen), _unit(tuned)))
    return float(np.corrcoef(first, second)[0, 1])


def _unit(features: ArrayLike) -> Floats:
    array = np.asarray(features, dtype=np.float64)
    if array.ndim != 2 or not np.isfinite(array).all():
        raise SettingError(f"text features must be finite numbers [classes, dimensions], got {list(array.shape)}")
    return array / np.maximum(np.linalg.norm(array, axis=1, keepdims=True), 1e-12)


def _layout(features: Floats) -> Floats:
    """Places in the plane; the same features get the same ones."""
    from sklearn.manifold import TSNE

    perplexity = min(30.0, max(2.0, (len(features) - 1) / 4))
    return np.asarray(TSNE(perplexity=perplexity, init="pca", random_state=0, metric="cosine").fit_transform(features))
