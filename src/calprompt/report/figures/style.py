"""One style for all figures: widths of columns, sizes of text, colours that colour-blind people can tell apart.

Text has its final size when a figure is put into a column without scaling: 3.3 inches (COLUMN), or 6.9 over both
columns (PAGE). The colours are those of Okabe and Ito; lines and points differ in dashes and markers too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from textwrap import wrap
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLUMN, PAGE = 3.3, 6.9  # inches
SMALL, NORMAL, LARGE = 6.0, 7.0, 7.5  # points
INK, FAINT = "#222222", "#7A7A7A"
BASE, NOVEL = "#0072B2", "#D55E00"
SPLIT_COLOURS = {"base": BASE, "novel": NOVEL, "all": "#009E73"}
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8C6D1F", "#5B3F8C", "#A0A0A0")
MARKERS = ("o", "s", "^", "v", "P", "X", "d", "*")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.2)), (0, (1.2, 1)), (0, (4, 1, 1, 1)), (0, (6, 2)), (0, (2, 2)))
HATCHES = ("", "////", "\\\\\\\\", "xxxx", "----", "++++")  # dots would make an SVG twenty times as large


@dataclass(frozen=True)
class Look:
    """How one thing looks in all panels of a figure."""

    color: str  # of lines, bars and marks
    marker: str  # of points
    dash: Any  # of lines

    @property
    def line(self) -> dict[str, Any]:
        """For lines with points."""
        return {"color": self.color, "marker": self.marker, "linestyle": self.dash}


KNOWN = {
    "cross-entropy": Look("#0072B2", "o", DASHES[1]),
    "TCPT": Look("#D55E00", "D", DASHES[0]),
    "zero-shot": Look("#7A7A7A", "s", DASHES[2]),
}


def style() -> Any:
    """A context in which figures are drawn in this style.

    >>> from matplotlib.figure import Figure
    >>> with style():
    ...     axes = Figure().subplots()
    >>> axes.spines["top"].get_visible()
    False
    """
    path = str(files("calprompt.report.figures") / "figures.mplstyle")
    return matplotlib.rc_context(matplotlib.rc_params_from_file(path, fail_on_error=True, use_default_template=False))


def new_figure(width: float = COLUMN, height: float = 2.2) -> Figure:
    """An empty figure whose parts make room for each other."""
    return Figure(figsize=(width, height), layout="constrained")


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name: that of what is well known, and the next free one for others.

    >>> looks(["TCPT", "MbLS"])["TCPT"].color
    '#D55E00'
    """
    free = [Look(COLOURS[i], MARKERS[i], DASHES[i % len(DASHES)]) for i in range(1, len(COLOURS))]
    found: dict[str, Look] = {}
    for name in dict.fromkeys(names):
        unknown = len([each for each in found if each not in KNOWN])
        found[name] = KNOWN.get(name, free[unknown % len(free)])
    return found


def panel_title(name: str) -> str:
    """The title of a panel, which is often a split."""
    return f"{name} classes" if name in SPLIT_COLOURS else name


def add_note(figure: Figure, text: str | None) -> None:
    """The line under a figure that says how much it was made from."""
    if not text:
        return
    width = figure.get_figwidth() * 72 / (0.52 * SMALL)  # characters of a line
    figure.supxlabel(
        "\n".join(wrap(text, int(width), break_on_hyphens=False, break_long_words=False)), fontsize=SMALL, color=FAINT
    )


def add_legend(figure: Figure, axes: Axes | None = None, *, columns: int | None = None, **options: Any) -> None:
    """A legend above all panels, in as many columns as fit."""
    axes = axes or figure.axes[0]
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    if columns is None:
        widest = max(map(len, labels)) * 0.55 * SMALL + 3.2 * SMALL + 6
        columns = max(1, min(len(labels), int(figure.get_figwidth() * 72 / widest)))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, **options)
