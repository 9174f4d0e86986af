"""The figures of a page: reliability diagrams of each dataset, and those of `calprompt figure` that suit the source."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure as Drawing

from calprompt.errors import CalpromptError
from calprompt.metrics import Predictions
from calprompt.progress import Progress, silent
from calprompt.report.figures import OWN, draw
from calprompt.report.page.document import Figure, ReportSettings
from calprompt.report.page.headline import FEW
from calprompt.report.page.measured import Measurements
from calprompt.report.page.svg import figure_svg
from calprompt.report.reliability import reliability_figure, runs_panel
from calprompt.results.methods import NONE, headline_pairs
from calprompt.results.sources import ReportSource
from calprompt.results.table import PARTS
from calprompt.text import slug

MOST_COLUMNS = 4  # methods in a row of diagrams
MANY = 3  # datasets from which on they are compared in a figure
NAMED: Mapping[str, str] = {  # figures by name, with how to read them
    "radar": "A spoke is a dataset; nearer to the middle is better for errors.",
    "effects": "A point is what a method changes against plain cross-entropy; the line is its 95 % interval.",
    "errors": "Of the predictions that were wrong, how sure was the model? The further left, the better.",
    "risk-coverage": "If only the most confident share is answered (across), how many of the answers are wrong (up)?",
}
OVER_DATASETS = ("radar", "effects")


def draw_figures(
    source: ReportSource, measured: Measurements, settings: ReportSettings, progress: Progress = silent
) -> tuple[list[Figure], list[str]]:
    """Figures, and why some are not there."""
    found = [figure for dataset in _closest(measured) if (figure := _reliability(dataset, measured, settings))]
    notes: list[str] = []
    wanted = [name for name in NAMED if measured.stored or OWN[name].needs == "rows"]
    if len(measured.datasets) < MANY:
        wanted = [name for name in wanted if name not in OVER_DATASETS]
    for number, name in enumerate(wanted):
        progress("drawing", number, len(wanted), name)
        try:
            drawn = draw(name, source)
        except CalpromptError as error:
            notes.append(f"The figure {name!r} is not there: {error}")
            continue
        title = OWN[name].title
        command = shlex.join(["calprompt", "figure", name, *_few_places(source), "--out", f"{name}.svg"])
        found.append(_figure(name, f"{title[0].upper()}{title[1:]}", NAMED[name], drawn, command))
    progress("drawing", len(wanted), len(wanted), "")
    return found, notes


def _few_places(source: ReportSource) -> list[str]:
    """Where the results are, as they were given; of many runs in one folder, that folder."""
    folders = list(dict.fromkeys(Path(place).parent.name or "." for place in source.places))
    return list(source.places) if len(source.places) <= FEW else folders


def _closest(measured: Measurements) -> list[str]:
    """The datasets that have diagrams of their own."""
    return measured.datasets[:FEW]


def _reliability(dataset: str, measured: Measurements, settings: ReportSettings) -> Figure | None:
    pair = next(iter(headline_pairs(measured.methods)), ())
    untuned = [method for method in measured.methods if method.is_zero_shot and method.calibrator == NONE]
    every = [method for method in measured.methods if method.calibrator == NONE]
    methods = every if len(every) <= MOST_COLUMNS else [*untuned[:1], *(each for each in pair if each not in untuned)]
    panels: dict[str, dict[str, list[Predictions]]] = {}
    for split in PARTS:
        for method in methods:
            runs = [each.sample for each in measured.where(dataset=dataset, split=split, method=method)]
            samples = [sample for sample in runs if sample is not None]
            if samples and len(samples) == len(runs):
                panels.setdefault(split, {})[method.name] = samples
    if not panels:
        return None
    drawn = reliability_figure(
        {
            split: {name: runs_panel(samples, n_bins=settings.bins) for name, samples in of_split.items()}
            for split, of_split in panels.items()
        }
    )
    caption = (
        "A bar goes up to how often predictions of a confidence were right. On the dashed line confidence and accuracy "
        "are equal; hatching is the gap to it. Below is how many predictions have which confidence."
    )
    return _figure(f"reliability-{slug(dataset)}", f"Confidence and accuracy on {dataset}", caption, drawn)


def _figure(key: str, title: str, caption: str, drawn: Drawing, command: str = "") -> Figure:
    return Figure(key, title, caption, figure_svg(drawn, key, title), command)
