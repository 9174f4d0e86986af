"""Figures of results by name, from a source; the functions behind them take plain arrays (`methods.radar_figure`).

    source = read_source("runs/pocket", "paper/pocket-margins")
    save_figure(draw("margins", source), "margins.pdf")

Every figure says how much it was made from. Papers add figures of their own; nothing is imported until it is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from calprompt.papers import registered
from calprompt.registry import unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calprompt.results.sources import ReportSource


@dataclass(frozen=True)
class FigureInfo:
    """A figure that can be drawn by name."""

    function: str  # module and name of the function that draws it from a source and options, such as "a.b:radar"
    title: str  # what it shows
    needs: str  # "logits" or "steps" of run folders, or only the "rows" of a table
    sweeps: tuple[str, ...] = ()  # the sweeps that choose the runs if nobody else does


def paper_sweeps(name: str) -> tuple[str, ...]:
    """A sweep of the paper in its forms: on the pocket, as in the paper, as released."""
    return (f"paper/pocket-{name}", f"paper/{name}", f"paper/{name}-released")


_METHODS, _CONFIDENCE = f"{__name__}.methods", f"{__name__}.confidence"
_MAIN, _MISCALIBRATION = paper_sweeps("main"), paper_sweeps("miscalibration")
OWN = {
    "radar": FigureInfo(f"{_METHODS}:radar", "a metric of every method on every dataset, as a radar", "rows", _MAIN),
    "effects": FigureInfo(
        f"{_METHODS}:effects", "what methods change against cross-entropy, with intervals", "rows", _MAIN
    ),
    "reliability": FigureInfo(
        f"{_CONFIDENCE}:reliability", "reliability diagrams, base and novel", "logits", _MISCALIBRATION
    ),
    "errors": FigureInfo(
        f"{_CONFIDENCE}:errors", "how sure the model was when it was wrong", "logits", _MISCALIBRATION
    ),
    "risk-coverage": FigureInfo(
        f"{_CONFIDENCE}:risk_coverage", "error rate of the most confident share", "logits", _MISCALIBRATION
    ),
}


def figures() -> dict[str, FigureInfo]:
    """All figures by name: those of every report, then those of papers."""
    return OWN | registered("figures", "FIGURES")


def figure_names() -> list[str]:
    """The figures that `draw` knows."""
    return list(figures())


def figure_info(name: str) -> FigureInfo:
    """What a figure shows and needs."""
    known = figures()
    if name not in known:
        raise unknown("figure", name, known)
    return known[name]


def draw(name: str, source: ReportSource, **options: Any) -> Figure:
    """Draw a figure of a source.

    Args:
        name: One of `figure_names()`.
        source: Results from `read_source`.
        **options: Options of that figure, such as split, metric or methods.

    Raises:
        UnknownNameError: if there is no such figure, or it has no such option.
        NotFoundError: if the source lacks what it is made from, such as run folders.
    """
    from calprompt.report.figures.style import style

    known = [each for each in signature(_function(name)).parameters if each != "source"]
    for option in options:
        if option not in known:
            raise unknown(f"option of the figure {name!r}:", option, known)
    with style():
        drawn: Figure = _function(name)(source, **options)
    return drawn


def _function(name: str) -> Any:
    module, _, function = figure_info(name).function.partition(":")
    return getattr(import_module(module), function)
