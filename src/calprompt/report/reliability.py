"""Reliability diagrams: how often predictions of a confidence are right, bin by bin, and how many predictions have it.

    accuracy │       ╱▒▒   ▒ from the accuracy of a bin to its mean confidence: the gap that ECE adds up
             │    ╱▒▒██    █ accuracy of the bin
             │ ╱██  ████
    images   │ ▂▁ ▁▃▆█     share of all images
             └───────────
              confidence

The data of a diagram is a `Panel`, which needs no plotting. Kinds of gap differ in hatching as well as in colour.
The grey band is where the accuracy of a bin would lie, 95 times out of 100, if its confidences were exactly right.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MultipleLocator

from calprompt.errors import SettingError
from calprompt.files import write_bytes
from calprompt.metrics import BinTable, Predictions, equal_width_table, predictions, smooth_calibration_error
from calprompt.metrics.inputs import ArrayLike, Floats

BINS = 10  # as in all tables, so that a panel and a table have the same ECE
SUFFIXES = (".png", ".svg", ".pdf")
DPI = 200
SIDE, HISTOGRAM = 1.95, 0.5  # inches: a square diagram, and the height of the histogram under it
GAP, COLUMN_GAP, ROW_GAP = 0.08, 0.16, 0.34  # diagram and histogram; columns; rows
MARGINS = {"left": 0.86, "right": 0.1, "top": 0.28, "bottom": 0.5, "title": 0.25, "legend": 0.17, "note": 0.15}
FEW_IMAGES, FEW_ALPHA = 10, 0.3  # bins with fewer images are drawn pale
SMALL, NORMAL, LARGE = 7.5, 8.5, 9.5  # points

INK, FAINT = "#222222", "#8A8A8A"
RIGHT: dict[str, Any] = {"facecolor": "#6A9CC9", "edgecolor": "white", "linewidth": 0.6}
OVER: dict[str, Any] = {"facecolor": "#FBE3D6", "edgecolor": "#C4481A", "linewidth": 0.6, "hatch": "//////"}
UNDER: dict[str, Any] = {"facecolor": "#DCE9F5", "edgecolor": "#1B4F7F", "linewidth": 0.6, "hatch": "\\\\\\\\"}
SHARE: dict[str, Any] = {"facecolor": "#A9A9A9", "edgecolor": "white", "linewidth": 0.6}
DIAGONAL: dict[str, Any] = {"color": INK, "linewidth": 1.0, "linestyle": (0, (4, 2))}
CHANCE: dict[str, Any] = {"facecolor": "#222222", "alpha": 0.22, "linewidth": 0}
LEVEL = 0.95  # of the band of chance
SURE: dict[str, Any] = {"color": INK, "linewidth": 1.3, "linestyle": "-"}
HEADING: dict[str, Any] = {"fontsize": LARGE, "fontweight": "bold", "color": INK}
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "handlelength": 2.2, "columnspacing": 1.4}
CORRECT: dict[str, Any] = {"color": INK, "linewidth": 1.3, "linestyle": (0, (1, 1))}


@dataclass(frozen=True, eq=False)
class Panel:
    """What a panel of the figure shows; for several runs, their images together and the mean of their numbers."""

    table: BinTable  # the bins
    accuracy: float  # fraction of the predictions that are right; this and the next three are means over runs
    confidence: float  # mean confidence
    ece: float  # expected calibration error over the same bins
    smooth_ece: float | None = None  # the calibration error without bins
    repeats: int = 1  # how often each image is in the table, which is so with runs that were tested on the same images

    @property
    def share(self) -> Floats:
        """Fraction of the images in each bin."""
        return np.asarray(self.table.count / self.table.total)

    @property
    def chance(self) -> tuple[Floats, Floats]:
        """Between which accuracies 95 % of the outcomes of each bin lie if its confidences are exactly right.

        Quantiles of a binomial with the bin's mean confidence; the confidences of a bin differ so little that this is
        hardly wider than the exact distribution. An image that is in the table several times counts once, since all of
        its outcomes may be the same. Empty bins have NaN.
        """
        from scipy.special import bdtr, bdtrik  # scipy.stats takes a second to import

        images = self.table.count // self.repeats
        filled = images > 0
        low, high = np.full(len(images), np.nan), np.full(len(images), np.nan)
        for ends, share in ((low, (1 - LEVEL) / 2), (high, (1 + LEVEL) / 2)):
            n, p = images[filled], self.table.confidence[filled]
            upper = np.ceil(np.nan_to_num(bdtrik(share, n, p)))  # as binom.ppf does
            lower = np.maximum(upper - 1, 0)
            ends[filled] = np.where(bdtr(lower, n, p) >= share, lower, upper) / n
        return low, high


def logits_panel(logits: ArrayLike, labels: ArrayLike, *, n_bins: int = BINS) -> Panel:
    """One panel of a reliability diagram.

    Args:
        logits: [N, C].
        labels: [N], the index of the true class.
        n_bins: Number of bins of equal width.
    """
    return runs_panel([predictions(logits, labels, from_logits=True)], n_bins=n_bins)


def runs_panel(runs: Sequence[Predictions], *, n_bins: int = BINS) -> Panel:
    """The panel of runs of one method, such as those of several seeds."""
    different = {run.labels.tobytes() for run in runs}
    repeats = -(-len(runs) // max(1, len(different)))
    return confidence_panel([(run.confidence, run.correct) for run in runs], n_bins=n_bins, repeats=repeats)


def confidence_panel(runs: Sequence[tuple[ArrayLike, ArrayLike]], *, n_bins: int = BINS, repeats: int = 1) -> Panel:
    """The panel of runs, of each the confidences [N] and whether each prediction was right [N].

    >>> panel = confidence_panel([([0.9, 0.8, 0.7, 0.7], [True, True, True, False])], n_bins=2)
    >>> panel.table.accuracy.tolist(), round(panel.ece, 3)
    ([nan, 0.75], 0.025)
    """
    if not runs:
        raise SettingError("a panel needs at least one run")
    tables = [equal_width_table(confidence, correct, n_bins=n_bins) for confidence, correct in runs]
    confidence, correct = (np.concatenate([np.asarray(run[k], dtype=np.float64) for run in runs]) for k in (0, 1))
    together = tables[0] if len(tables) == 1 else equal_width_table(confidence, correct, n_bins=n_bins)
    right, sure = (float(np.mean([np.mean(run[k]) for run in runs])) for k in (1, 0))
    ece = float(np.mean([table.expected_gap for table in tables]))
    smooth = float(np.mean([smooth_calibration_error(*run) for run in runs]))
    return Panel(together, right, sure, ece, smooth, repeats)


def reliability_figure(
    panels: Mapping[str, Mapping[str, Panel]], title: str | None = None, *, note: str | None = None
) -> Figure:
    """A figure of panels with the same axes.

    Args:
        panels: By row and column, such as panels["novel"]["CoOp"]; a missing one leaves an empty place.
        title: Above the figure.
        note: Under it.

    Raises:
        SettingError: if there are no panels.
    """
    columns = list(dict.fromkeys(column for row in panels.values() for column in row))
    if not columns:
        raise SettingError("there are no panels to draw")
    highest = max(panel.share.max() for row in panels.values() for panel in row.values())
    legend_columns = 1 if len(columns) == 1 else min(4, 1 + len(columns))
    legend = MARGINS["legend"] * math.ceil(len(_legend()) / legend_columns)
    # everything has its place in inches, so that all panels have one size
    top, bottom = MARGINS["top"] + bool(title) * MARGINS["title"], MARGINS["bottom"] + legend
    bottom += bool(note) * MARGINS["note"]
    width = MARGINS["left"] + len(columns) * SIDE + (len(columns) - 1) * COLUMN_GAP + MARGINS["right"]
    height = top + len(panels) * (SIDE + GAP + HISTOGRAM) + (len(panels) - 1) * ROW_GAP + bottom
    figure = Figure(figsize=(width, height))
    side = SIDE / width, SIDE / height
    for i, (row, row_panels) in enumerate(panels.items()):
        y = height - top - SIDE - i * (SIDE + GAP + HISTOGRAM + ROW_GAP)
        figure.text(0.14 / width, y / height + side[1] / 2, row, rotation=90, ha="center", va="center", **HEADING)
        for j, column in enumerate(columns):
            x = (MARGINS["left"] + j * (SIDE + COLUMN_GAP)) / width
            if i == 0:
                above = y / height + side[1] + 0.08 / height
                figure.text(x + side[0] / 2, above, column, ha="center", va="bottom", **HEADING)
            if column not in row_panels:
                continue
            upper = figure.add_axes((x, y / height, *side))
            lower = figure.add_axes((x, (y - GAP - HISTOGRAM) / height, side[0], HISTOGRAM / height))
            _diagram(upper, row_panels[column])
            _histogram(lower, row_panels[column], highest)
            first, last = j == 0, i == len(panels) - 1
            upper.tick_params(labelbottom=False, labelleft=first)
            lower.tick_params(labelbottom=last, labelleft=first)
            if first:
                for axes, what in ((upper, "accuracy"), (lower, "images")):
                    axes.set_ylabel(what, fontsize=NORMAL, color=INK)
                    axes.yaxis.set_label_coords(-0.22, 0.5)
            if last:
                lower.set_xlabel("confidence", fontsize=NORMAL, color=INK)
    below = MARGINS["note"] / height if note else 0
    figure.legend(handles=_legend(), loc="lower center", bbox_to_anchor=(0.5, below), ncols=legend_columns, **LEGEND)
    if note:
        figure.text(0.5, 0.05 / height, note, ha="center", va="bottom", fontsize=SMALL, color=FAINT)
    if title:
        figure.suptitle(title, y=1 - 0.06 / height, va="top", fontsize=LARGE, color=INK)
    return figure


def _diagram(axes: Axes, panel: Panel) -> None:
    """Accuracy of every bin that has images, and the gap to its mean confidence."""
    table = panel.table
    filled = table.count > 0
    left, width = table.lower[filled], (table.upper - table.lower)[filled]
    accuracy, confidence = table.accuracy[filled], table.confidence[filled]
    low, gap = np.minimum(accuracy, confidence), np.abs(accuracy - confidence)
    few = table.count[filled] < FEW_IMAGES
    for alpha, kind in ((1.0, ~few), (FEW_ALPHA, few)):
        axes.bar(left[kind], low[kind], width[kind], align="edge", zorder=2, alpha=alpha, **RIGHT)
        for style, which in ((OVER, kind & (confidence > accuracy)), (UNDER, kind & (confidence < accuracy))):
            axes.bar(left[which], gap[which], width[which], low[which], align="edge", zorder=3, alpha=alpha, **style)
    axes.plot([0, 1], [0, 1], zorder=4, **DIAGONAL)
    for start, end, lowest, highest in zip(table.lower, table.upper, *panel.chance, strict=True):
        axes.fill_between([start, end], lowest, highest, zorder=3.5, **CHANCE)
    axes.text(
        0.045,
        0.955,
        _numbers(panel),
        transform=axes.transAxes,
        ha="left",
        va="top",
        fontsize=SMALL,
        color=INK,
        linespacing=1.25,
        zorder=5,
        bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
    )
    _frame(axes)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_locator(MultipleLocator(0.2))
    axes.yaxis.set_major_formatter("{x:.2g}")


def _numbers(panel: Panel) -> str:
    """Accuracy, both calibration errors as tables write them, and of how many images."""
    lines = [f"accuracy {100 * panel.accuracy:.2f} %", f"ECE {100 * panel.ece:.2f} % ({len(panel.table.count)} bins)"]
    if panel.smooth_ece is not None:
        lines.append(f"SmoothECE {100 * panel.smooth_ece:.2f} %")
    images = panel.table.total // panel.repeats
    return "\n".join(
        [*lines, f"n = {images:,}" + (f" \N{MULTIPLICATION SIGN} {panel.repeats}" if panel.repeats > 1 else "")]
    )


def _histogram(axes: Axes, panel: Panel, highest: float) -> None:
    """The share of the images in every bin, and lines at the accuracy and the mean confidence."""
    table = panel.table
    axes.bar(table.lower, 100 * panel.share, table.upper - table.lower, align="edge", zorder=2, **SHARE)
    axes.axvline(panel.confidence, zorder=4, **SURE)
    axes.axvline(panel.accuracy, zorder=4, **CORRECT)
    _frame(axes)
    axes.set_ylim(0, 108 * highest)
    axes.yaxis.set_major_locator(MultipleLocator(_step(100 * highest)))
    axes.yaxis.set_major_formatter("{x:g} %")


def _frame(axes: Axes) -> None:
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_locator(MultipleLocator(0.2))
    axes.xaxis.set_major_formatter("{x:.2g}")
    axes.tick_params(labelsize=SMALL, length=2.5, color=FAINT, labelcolor=INK)
    axes.grid(color="#E6E6E6", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(FAINT)


def _step(highest: float) -> float:
    """The distance between ticks, so that there are one to three above 0.

    >>> [_step(highest) for highest in (99, 55, 25, 12)]
    [50, 20, 10, 5]
    """
    return next(step for step in (50, 20, 10, 5, 2) if highest / step >= 1.4 or step == 2)


def _legend() -> list[Patch | Line2D]:
    return [
        Patch(label="accuracy", **RIGHT),
        Line2D([], [], label="perfectly calibrated", **DIAGONAL),
        Patch(label="over-confident by", **OVER),
        Line2D([], [], label="mean confidence", **SURE),
        Patch(label="under-confident by", **UNDER),
        Line2D([], [], label="mean accuracy", **CORRECT),
        Patch(label=f"fewer than {FEW_IMAGES} images", alpha=FEW_ALPHA, **RIGHT),
        Patch(label="what chance does, 95 %", **CHANCE),
    ]


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG, SVG or PDF, by its suffix; the same figure gives the same bytes.

    Args:
        figure: A matplotlib figure.
        path: The file to write.

    Raises:
        SettingError: if the suffix is another one.
    """
    path = Path(path).expanduser()
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise SettingError(f"figures are written as {', '.join(SUFFIXES)}; got {path.name!r}")
    undated = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[kind]
    data = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "calprompt", "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure.savefig(data, format=kind[1:], dpi=DPI, metadata=undated)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data.getvalue())
    return path
