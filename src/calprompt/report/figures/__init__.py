"""Figures of results, each by name from a source, and as a function of plain arrays.

    source = read_source("runs/pocket", "paper/pocket-margins")
    save_figure(draw("margins", source), "margins.pdf")

    radar_figure({"base": {"TCPT": {"food": 3.1, ...}}})          the same without a source

Every figure says how much it was made from. Nothing is imported until it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from calprompt.lazy import lazy_exports
from calprompt.registry import unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calprompt.results.sources import ReportSource


@dataclass(frozen=True)
class FigureInfo:
    """A figure that can be drawn by name.

    Attributes:
        module: Of this package; its function `from_source` draws it.
        title: What it shows.
        needs: "logits" or "steps" of run folders, or only the "rows" of a table.
        sweep: The sweep of the paper whose runs it shows, without paper/ and pocket-.
    """

    module: str
    title: str
    needs: str
    sweep: str

    @property
    def sweeps(self) -> tuple[str, ...]:
        """The sweeps that choose the runs if nobody else does: on the pocket, as in the paper, as released."""
        return tuple(f"paper/{name}" for name in (f"pocket-{self.sweep}", self.sweep, f"{self.sweep}-released"))


FIGURES = {
    "radar": FigureInfo("radar", "a metric of every method on every dataset, as a radar", "rows", "main"),
    "effects": FigureInfo("effects", "what methods change against cross-entropy, with intervals", "rows", "main"),
    "reliability": FigureInfo("reliability_grid", "reliability diagrams, base and novel", "logits", "miscalibration"),
    "margin-spread": FigureInfo("margin_spread", "how far margins vary, against ECE", "logits", "miscalibration"),
    "errors": FigureInfo("errors", "how sure the model was when it was wrong", "logits", "miscalibration"),
    "risk-coverage": FigureInfo("risk_coverage", "error rate of the most confident share", "logits", "miscalibration"),
    "margins": FigureInfo("margins", "margins under several losses: distribution and boxes", "logits", "margins"),
    "text-features": FigureInfo("text_features", "text features before and after, by t-SNE", "logits", "text-features"),
    "shots": FigureInfo("shots", "accuracy and ECE against training images per class", "rows", "shots"),
    "phrases": FigureInfo("phrases", "accuracy and ECE from several initial phrases", "rows", "phrases"),
    "alpha-beta": FigureInfo("weights", "accuracy and ECE over the weights of the margin loss", "rows", "alpha-beta"),
    "lambda": FigureInfo("moment_weight", "accuracy and ECE against the weight of the moment loss", "rows", "lambda"),
    "gradients": FigureInfo("gradients", "ratios of gradient norms over steps", "steps", "gradients"),
    "cost": FigureInfo("cost", "time and memory of training", "rows", "time"),
}
FUNCTIONS = {
    "cost": ("cost_figure",),
    "effects": ("effect_figure",),
    "errors": ("error_figure", "error_shares"),
    "gradients": ("gradient_figure",),
    "margin_spread": ("Spread", "correlation", "margin_spread_figure", "margin_variability"),
    "margins": ("label_margins", "margin_figure"),
    "phrases": ("phrase_figure",),
    "radar": ("radar_figure",),
    "risk_coverage": ("risk_at", "risk_coverage_figure"),
    "selection": ("Point",),
    "shots": ("curve_figure",),
    "text_features": ("geometry", "text_feature_figure"),
    "weights": ("map_figure",),
}

__all__ = [
    "FIGURES",
    "FigureInfo",
    "Point",
    "Spread",
    "correlation",
    "cost_figure",
    "curve_figure",
    "draw",
    "effect_figure",
    "error_figure",
    "error_shares",
    "figure_info",
    "figure_names",
    "figure_options",
    "geometry",
    "gradient_figure",
    "label_margins",
    "map_figure",
    "margin_figure",
    "margin_spread_figure",
    "margin_variability",
    "phrase_figure",
    "radar_figure",
    "risk_at",
    "risk_coverage_figure",
    "text_feature_figure",
]


def figure_names() -> list[str]:
    """The figures that `draw` knows."""
    return list(FIGURES)


def figure_info(name: str) -> FigureInfo:
    """What a figure shows and needs.

    Args:
        name: Of the figure.

    Raises:
        UnknownNameError: with the nearest known name, if there is none.
    """
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    return FIGURES[name]


def figure_options(name: str) -> list[str]:
    """The options that `draw` takes for a figure."""
    return [each for each in signature(_function(name)).parameters if each != "source"]


def draw(name: str, source: ReportSource, **options: Any) -> Figure:
    """Draw a figure of a source.

    Args:
        name: One of `figure_names()`.
        source: What `read_source` returned.
        **options: Of that figure, such as split, metric or methods.

    Raises:
        UnknownNameError: if there is no such figure, or it has no such option.
        NotFoundError: if the source lacks what it is made from, such as run folders.
    """
    from calprompt.report.figures.style import style

    known = figure_options(name)
    for option in options:
        if option not in known:
            raise unknown(f"option of the figure {name!r}:", option, known)
    with style():
        drawn: Figure = _function(name)(source, **options)
    return drawn


def _function(name: str) -> Any:
    return import_module(f"{__name__}.{figure_info(name).module}").from_source


__getattr__, _lazy_dir = lazy_exports(__name__, FUNCTIONS)


def __dir__() -> list[str]:
    return sorted({*_lazy_dir(), *globals()})
