"""Text features before and after tuning, laid out in the plane by t-SNE: a point a class, a panel a method.

Like the supplement's figure. All sets are laid out together, so that a point means the same in every panel: grey is the
frozen feature of a class, a line leads to the tuned one. t-SNE keeps neighbours and nothing else, so each panel also
says what was measured in the full space: the mean cosine of a class's two features, and the correlation of the cosines
between all pairs of classes before and after, which is 1 if the classes keep their places to each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from calprompt.errors import NotFoundError, SettingError
from calprompt.metrics.inputs import ArrayLike, Floats
from calprompt.report.figures.style import COLUMN, FAINT, SMALL, add_note, looks, new_figure
from calprompt.results import selection
from calprompt.results.methods import dataset_name
from calprompt.results.sources import ReportSource


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
    """A panel per method."""
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
