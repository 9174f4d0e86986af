"""The figures of a page: reliability diagrams of each dataset, and those of `calprompt figure` that suit the source.

They are matplotlib's drawings as SVG without anything that a strict page would refuse. Text stays text, in the reader's
own font. What matplotlib writes as style="fill: red" becomes an attribute of its own, because a page whose styles are
known in advance allows no others. Names of elements get the figure's as a prefix, so that two figures of a page never
share one.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from matplotlib.figure import Figure as Drawing

from calprompt.errors import CalpromptError
from calprompt.evaluation.settings import NONE, PARTS
from calprompt.progress import Progress, silent
from calprompt.report.figures import OWN, draw
from calprompt.report.page.document import Figure, ReportSettings
from calprompt.report.page.headline import MAX_LISTED
from calprompt.report.page.measured import Measurements
from calprompt.report.reliability import Panel, reliability_figure, runs_panel
from calprompt.results.methods import headline_pairs
from calprompt.results.sources import ReportSource
from calprompt.text import slug

MAX_COLUMNS = 4  # methods in a row of diagrams
MIN_DATASETS = 3  # datasets from which on they are compared in a figure
CAPTIONS: Mapping[str, str] = {  # figures by name, with how to read them
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
    found = [
        figure for dataset in measured.datasets[:MAX_LISTED] if (figure := _reliability(dataset, measured, settings))
    ]
    notes: list[str] = []
    wanted = [name for name in CAPTIONS if measured.stored or OWN[name].needs == "rows"]
    if len(measured.datasets) < MIN_DATASETS:
        wanted = [name for name in wanted if name not in OVER_DATASETS]
    folders = dict.fromkeys(Path(place).parent.name or "." for place in source.places)  # of many runs in one folder
    places = source.places if len(source.places) <= MAX_LISTED else folders
    for number, name in enumerate(wanted):
        progress("drawing", number, len(wanted), name)
        try:
            drawn = draw(name, source)
        except CalpromptError as error:
            notes.append(f"The figure {name!r} is not there: {error}")
            continue
        title = OWN[name].title
        command = shlex.join(["calprompt", "figure", name, *places, "--out", f"{name}.svg"])
        found.append(_figure(name, f"{title[0].upper()}{title[1:]}", CAPTIONS[name], drawn, command))
    progress("drawing", len(wanted), len(wanted), "")
    return found, notes


def _reliability(dataset: str, measured: Measurements, settings: ReportSettings) -> Figure | None:
    pair = next(iter(headline_pairs(measured.methods)), ())
    untuned = [method for method in measured.methods if method.is_zero_shot and method.calibrator == NONE]
    every = [method for method in measured.methods if method.calibrator == NONE]
    methods = every if len(every) <= MAX_COLUMNS else [*untuned[:1], *(each for each in pair if each not in untuned)]
    panels: dict[str, dict[str, Panel]] = {}
    for split in PARTS:
        for method in methods:
            runs = [each.sample for each in measured.where(dataset=dataset, split=split, method=method)]
            samples = [sample for sample in runs if sample is not None]
            if samples and len(samples) == len(runs):
                panels.setdefault(split, {})[method.name] = runs_panel(samples, n_bins=settings.bins)
    if not panels:
        return None
    caption = (
        "A bar goes up to how often predictions of a confidence were right. On the dashed line confidence and accuracy "
        "are equal; hatching is the gap to it. Below is how many predictions have which confidence."
    )
    return _figure(
        f"reliability-{slug(dataset)}", f"Confidence and accuracy on {dataset}", caption, reliability_figure(panels)
    )


def _figure(key: str, title: str, caption: str, drawn: Drawing, command: str = "") -> Figure:
    return Figure(key, title, caption, figure_svg(drawn, key, title), command)


SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
DROPPED = {"metadata", "style", "script", "title"}
REFERENCE = re.compile(r"url\(#([^)]+)\)")
LONG_DECIMALS = re.compile(r"(\d+\.\d{2})\d+")  # hundredths of a point are finer than any screen
SHORTHAND = re.compile(r"(?:(italic|oblique) )?(?:(bold|\d{3}) )?([\d.]+)px (.*)")


def figure_svg(figure: Drawing, key: str, label: str) -> str:
    """A figure as an SVG element for a page."""
    import matplotlib

    data = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "calprompt", "svg.fonttype": "none"}):
        figure.savefig(data, format="svg", metadata={"Date": None})
    return clean_svg(data.getvalue(), key, label)


def clean_svg(data: bytes, key: str, label: str) -> str:
    """An SVG file of matplotlib as an element of a page."""
    root = ElementTree.fromstring(data)
    _clean(root, key)
    width, height = (root.attrib.pop(name).removesuffix("pt") for name in ("width", "height"))
    root.attrib.pop("version", None)
    root.set("role", "img")
    root.set("aria-label", label)
    root.set("viewBox", root.get("viewBox", f"0 0 {width} {height}"))
    root.set("width", f"{float(width) * 96 / 72:.0f}")
    root.set("height", f"{float(height) * 96 / 72:.0f}")
    root.set("stroke-linejoin", "round")
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    text = ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)
    return re.sub(r"\s*\n\s*", "", text.replace(f'xmlns="{SVG}" ', "").replace(f' xmlns:xlink="{XLINK}"', ""))


def _clean(element: ElementTree.Element, key: str) -> None:
    for child in list(element):
        if not isinstance(child.tag, str) or child.tag.rpartition("}")[2] in DROPPED:
            element.remove(child)
        else:
            _clean(child, key)
    style = element.attrib.pop("style", "")
    for name, value in (part.split(":", 1) for part in style.split(";") if ":" in part):
        _set_style(element, name.strip(), value.strip())
    for name, value in list(element.attrib.items()):
        if name == "id":
            element.set(name, f"{key}-{value}")
        elif name == f"{{{XLINK}}}href":
            del element.attrib[name]
            element.set("href", value.replace("#", f"#{key}-", 1))
        elif name.startswith("on"):
            del element.attrib[name]
        else:
            shorter = LONG_DECIMALS.sub(r"\1", value) if name in ("d", "x", "y", "transform", "points") else value
            element.set(name, REFERENCE.sub(rf"url(#{key}-\1)", shorter))


def _set_style(element: ElementTree.Element, name: str, value: str) -> None:
    if name == "font":
        match = SHORTHAND.fullmatch(value)
        if match is None:
            return
        for attribute, found in zip(("font-style", "font-weight", "font-size"), match.groups(), strict=False):
            if found:
                element.set(attribute, found)
        element.set("font-family", FONT)
    elif name == "font-family":
        element.set(name, FONT)
    else:
        element.set(name, value)
