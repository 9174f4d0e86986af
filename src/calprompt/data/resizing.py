"""The evaluation view of a picture: resized and cropped as CLIP was trained to see it. Needs no torch."""

from __future__ import annotations

from PIL import Image


def resize_and_crop(
    image: Image.Image, size: int, interpolation: str = "bicubic", mode: str = "shortest"
) -> Image.Image:
    """A square picture of `size` pixels a side, its sizes and borders rounded as torchvision does.

    Args:
        image: In RGB.
        size: Pixels along a side of the result.
        interpolation: "bicubic" or "bilinear".
        mode: "shortest" resizes the short side and crops the centre, "squash" resizes both sides.

    >>> resize_and_crop(Image.new("RGB", (40, 30)), 15).size
    (15, 15)
    """
    short = min(image.size)
    width, height = (int(size * side / short) for side in image.size) if mode == "shortest" else (size, size)
    resized = image.resize((width, height), Image.Resampling[interpolation.upper()])
    if width == height:
        return resized
    left, top = round((width - size) / 2), round((height - size) / 2)
    return resized.crop((left, top, left + size, top + size))
