"""What the pixels of pictures say: blurred, dark, blank, tiny, turned by EXIF; and which show the same.

sharpness   variance of the Laplacian over the variance of the grey levels, so that a flat picture is not called blurred
sketch      24 by 24 pixels in colour, centred and of unit length: the product of two sketches is their correlation
"""

from __future__ import annotations

import hashlib
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calprompt.data.images import Decodable, FileContent, Images
from calprompt.errors import ImageError
from calprompt.inspection.arithmetic import Floats, outliers
from calprompt.parallel import map_in_threads
from calprompt.progress import Progress, silent

SKETCH = 24
LOOKED_AT = 256  # pixels of the short side at which sharpness is measured, at most
ORIENTATION = 0x0112
BLANK = 4.0  # standard deviation of grey levels
DARK = (40.0, 100.0)  # mean and 95th percentile of grey levels
COMMON_SHARE = 0.2  # share of the folder from which on a property is that of the folder, not of a picture
SAME_PICTURE = 0.9985  # correlation of sketches of one picture saved twice, at least
IF_CROPPED = 0.9  # the same if it was also cropped a little, which features have to confirm


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured of a picture."""

    width: int  # in pixels
    height: int  # in pixels
    turned: bool  # whether its EXIF data say that it has to be turned
    brightness: float  # mean grey level, 0 to 255
    bright: float  # 95th percentile of grey levels
    contrast: float  # standard deviation of grey levels
    sharpness: float  # logarithm of what the top of this module says
    pixels: str  # sha256 of its size and pixels in RGB
    sketch: NDArray[np.uint8]  # [24 · 24 · 3] in uint8


def measure(picture: Any) -> Measured:
    """Measure a picture; raises an `ImageError` for one that cannot be decoded."""
    image = picture.decode()
    grey = image.convert("L")
    short = min(grey.size)
    if short > LOOKED_AT:
        scale = LOOKED_AT / short
        grey = grey.resize(
            (max(1, round(grey.width * scale)), max(1, round(grey.height * scale))), Image.Resampling.BOX
        )
    levels = np.asarray(grey, dtype=np.float64)
    variance = float(levels.var())
    sharpness = 0.0
    if min(levels.shape) > 2 and variance > 0:
        inner = levels[1:-1, 1:-1]
        sums = levels[:-2, 1:-1] + levels[2:, 1:-1] + levels[1:-1, :-2] + levels[1:-1, 2:]
        sharpness = math.log(max(float((sums - 4 * inner).var()), 1e-12) / variance)
    small = image.resize((SKETCH, SKETCH), Image.Resampling.BOX)
    return Measured(
        image.width,
        image.height,
        _turned(picture),
        float(levels.mean()),
        float(np.percentile(levels, 95)),
        math.sqrt(variance),
        sharpness,
        hashlib.sha256(f"{image.size}".encode() + image.tobytes()).hexdigest(),
        np.asarray(small).reshape(-1),
    )


def _turned(picture: Any) -> bool:
    if not isinstance(picture, FileContent):
        return False
    try:
        with Image.open(io.BytesIO(picture.data)) as image:
            return int(image.getexif().get(ORIENTATION, 1)) in range(2, 9)
    except Exception:  # the tag is damaged; the picture was decoded
        return False


def measure_all(images: Images, progress: Progress = silent) -> tuple[list[Measured | None], dict[str, str]]:
    """What was measured of each picture, None where it cannot be read, and what is wrong with these."""
    reasons: dict[str, str] = {}

    def one(index: int) -> Measured | None:
        try:
            picture = images.read(index)
            return measure(picture) if isinstance(picture, Decodable) else None
        except ImageError as error:
            reasons[images.name(index)] = error.reason
            return None

    found: list[Measured | None] = []
    for each in map_in_threads(one, range(len(images))):
        found.append(each)
        progress("looking at pictures", len(found), len(images))
    return found, reasons


def sketches(measured: list[Measured]) -> tuple[Floats, Floats]:
    """Sketches [n, 24 · 24 · 3], centred and of unit length, as they are and mirrored; zeros of blank pictures."""
    raw = np.stack([each.sketch for each in measured]).astype(np.float64)
    mirrored = raw.reshape(-1, SKETCH, SKETCH, 3)[:, :, ::-1].reshape(len(raw), -1)

    def unit(rows: Floats) -> Floats:
        centred = rows - rows.mean(axis=1, keepdims=True)
        length = np.linalg.norm(centred, axis=1, keepdims=True)
        flat = np.array([each.contrast < BLANK for each in measured])[:, None]
        return np.where(flat | (length == 0), 0.0, centred / np.maximum(length, 1e-12))

    return unit(raw), unit(mirrored)


def problems(measured: list[Measured], size: int) -> list[tuple[int, str, float]]:
    """What is wrong with single pictures: number, problem and score, from 1 up the worse."""
    found: list[tuple[int, str, float]] = []
    blank = np.array([each.contrast < BLANK for each in measured])
    dark = np.array([each.brightness < DARK[0] and each.bright < DARK[1] for each in measured]) & ~blank
    short = np.array([min(each.width, each.height) for each in measured], dtype=np.float64)
    tiny = short < min(size / 2, float(np.median(short)) / 2)
    turned = np.array([each.turned for each in measured])
    for rows, problem, score in (
        (blank, "blank", lambda i: BLANK / max(measured[i].contrast, 0.1)),
        (dark, "dark", lambda i: DARK[0] / max(measured[i].brightness, 1.0)),
        (tiny, "tiny", lambda i: size / short[i]),
        (turned, "turned by EXIF", lambda i: 1.0),
    ):
        if rows.mean() <= COMMON_SHARE:
            found += [(int(i), problem, float(score(i))) for i in np.flatnonzero(rows)]
    blurred = outliers(np.array([each.sharpness for each in measured])) * ~(blank | dark | tiny)
    return found + [(int(i), "blurred", float(blurred[i])) for i in np.flatnonzero(blurred >= 1)]
