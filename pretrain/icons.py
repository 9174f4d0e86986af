"""Icons of user interfaces: what many sets, drawn independently, call by the same name.

A set has an icon in several styles, "bell", "bell-outline", "bell-fill"; the shortest name is taken. icons.json lists
the classes, icons of things and signs: the names that at least 12 of the 28 sets have and that pretraining used for
something, without those that depend on left and right, because training pictures are mirrored, and without some whose
drawings are all alike ("circle", "square", "stop") or of a company ("apple").
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pretrain.packages import PACKAGES
from pretrain.studios import icons, picture

SETS = tuple(package.key for package in PACKAGES if package.what.startswith("icons: "))
CLASSES: dict[str, list[str]] = json.loads((Path(__file__).parent / "icons.json").read_text("utf-8"))
STYLES = {
    "outline", "outlined", "line", "linear", "fill", "filled", "solid", "bold", "light", "thin", "thick", "regular",
    "duotone", "twotone", "two", "tone", "rounded", "sharp", "curved", "broken", "bulk", "mini", "alt", "md", "ios",
    "fi", "o", "l", "f", "s", "r", "12", "16", "20", "24", "32", "48", "80",
}  # fmt: skip


def plain_name(name: str) -> str:
    """What an icon shows, whatever its style.

    >>> plain_name("credit-card-outline-rounded")
    'credit card'
    >>> plain_name("bxs-bell")
    'bell'
    """
    words = name.split("-")
    while len(words) > 1 and words[-1] in STYLES:
        words.pop()
    return " ".join(words[1:] if words[0] in ("bx", "bxs") and len(words) > 1 else words)


def by_class(packages: dict[str, Path], classes: Sequence[str]) -> dict[str, list[tuple[str, np.ndarray]]]:
    """Where each icon of a class comes from, and its picture: one of every set that has it."""
    result: dict[str, list[tuple[str, np.ndarray]]] = defaultdict(list)
    for icon_set in SETS:
        drawn = dict(icons(packages[icon_set] / "package"))
        named: dict[str, str] = {}
        for name in sorted(drawn, key=lambda name: (len(name), name)):
            named.setdefault(plain_name(name), name)
        for shown in classes:
            if shown in named:
                result[shown].append((f"{icon_set}/{named[shown]}", picture(drawn[named[shown]], ".svg")))
    return result
