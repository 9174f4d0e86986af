"""Figures inside a page: matplotlib's drawing as SVG without anything that a strict page would refuse.

Text stays text, in the reader's own font. What matplotlib writes as style="fill: red" becomes an attribute of its own,
because a page whose styles are known in advance allows no others. Names of elements get the figure's as a prefix, so
that two figures of a page never share one. A hatch of dots, for which matplotlib writes 400 kB, becomes two circles
that repeat.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
DROPPED = {"metadata", "style", "script", "title"}
REFERENCE = re.compile(r"url\(#([^)]+)\)")
LONG = re.compile(r"(\d+\.\d{2})\d+")  # hundredths of a point are finer than any screen
LARGE = 20_000  # characters of a path: so many only a hatch of dots has
SHORTHAND = re.compile(r"(?:(italic|oblique) )?(?:(bold|\d{3}) )?([\d.]+)px (.*)")


def figure_svg(figure: Figure, key: str, label: str) -> str:
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
    if element.tag == f"{{{SVG}}}pattern":
        _shorten_dots(element)
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
            shorter = LONG.sub(r"\1", value) if name in ("d", "x", "y", "transform", "points") else value
            element.set(name, REFERENCE.sub(rf"url(#{key}-\1)", shorter))


def _shorten_dots(pattern: ElementTree.Element) -> None:
    """A hatch of thousands of circles as a tile with two of them."""
    for path in pattern.findall(f"{{{SVG}}}path"):
        if len(path.get("d", "")) < LARGE:
            continue
        pattern.remove(path)
        pattern.set("width", "4")
        pattern.set("height", "4")
        for place in ("1", "3"):
            circle = ElementTree.SubElement(pattern, f"{{{SVG}}}circle", cx=place, cy=place, r="0.45")
            circle.set("fill", path.get("fill", "none"))


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
