"""What the pocket's datasets look like: a row of test pictures of each, as docs/pocket-datasets.png.

python -m pretrain.gallery
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from calprompt.pocket import DATA, Sheet
from calprompt.report.reliability import save_figure
from pretrain.selection import COMPARED, KEPT_OUT, SHIFTS

PICTURES = 10  # of a dataset, each of another class
OUT = Path(__file__).parents[1] / "docs" / "pocket-datasets.png"


def some(name: str) -> list[tuple[str, np.ndarray]]:
    """Class name and a test picture of classes that lie evenly in the list."""
    sheet = Sheet.read(DATA, name)
    labels = {round(place) for place in np.linspace(0, len(sheet.class_names) - 1, PICTURES)}
    return [
        (sheet.class_names[label], pixels)
        for label, number, pixels in sheet.pictures("test")
        if label in labels and number == 0
    ]


def main() -> None:
    names = [choice.name for choice in (*COMPARED, *KEPT_OUT, *SHIFTS)]
    figure = Figure(figsize=(10.5, 1.12 * len(names)), layout="constrained")
    for axes, name in zip(figure.subplots(len(names), PICTURES), names, strict=True):
        for panel, (title, pixels) in zip(axes, some(name), strict=True):
            panel.imshow(pixels, interpolation="nearest")
            panel.set_title(title if len(title) < 18 else f"{title[:16]}…", fontsize=6.5, pad=2)
            panel.set_xticks([])
            panel.set_yticks([])
        axes[0].set_ylabel(name.replace("_", "\n"), fontsize=8, rotation=0, ha="right", va="center")
    save_figure(figure, OUT)
    with Image.open(OUT) as image:
        small = image.convert("RGB").quantize(200)
    small.save(OUT, optimize=True)


if __name__ == "__main__":
    main()
