"""An exported model sees the pixels that the library sees, whatever kind of image it is given."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from calprompt.clip.preprocessing import Preprocessing
from calprompt.data.images import open_image
from calprompt.errors import ImageError
from calprompt.export import runtime
from export.exported import loaded, pictures

NOISE = np.random.default_rng(0)
GREY = NOISE.integers(0, 256, (50, 60)).astype(np.uint8)
COLOUR = NOISE.integers(0, 256, (50, 60, 3)).astype(np.uint8)


def turned() -> bytes:
    picture = Image.fromarray(COLOUR)
    exif = picture.getexif()
    exif[0x0112] = 6  # turn by 90 degrees
    return saved(picture, "JPEG", exif=exif)


def transparent_palette() -> Image.Image:
    picture = Image.fromarray(COLOUR).quantize(16)
    picture.info["transparency"] = 3
    return picture


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


KINDS: dict[str, Any] = {
    "colour": saved(Image.fromarray(COLOUR), "PNG"),
    "jpeg": saved(Image.fromarray(COLOUR), "JPEG"),
    "grey": saved(Image.fromarray(GREY), "PNG"),
    "one bit": saved(Image.fromarray(GREY).convert("1"), "PNG"),
    "palette": saved(Image.fromarray(COLOUR).quantize(16), "PNG"),
    "palette with transparency": saved(transparent_palette(), "PNG"),
    "rgba": saved(Image.fromarray(np.dstack([COLOUR, GREY])), "PNG"),
    "grey with alpha": saved(Image.fromarray(np.dstack([GREY, GREY]), "LA"), "PNG"),
    "cmyk": saved(Image.fromarray(COLOUR).convert("CMYK"), "JPEG"),
    "16 bits": saved(Image.fromarray(NOISE.integers(0, 65536, (50, 60)).astype(np.uint16)), "PNG"),
    "16 bits, big-endian": saved(Image.fromarray(NOISE.integers(0, 65536, (50, 60)).astype(np.uint16)), "TIFF"),
    "animated": saved(
        Image.fromarray(COLOUR), "GIF", save_all=True, append_images=[Image.fromarray(COLOUR[::-1].copy())]
    ),
    "webp": saved(Image.fromarray(COLOUR), "WEBP"),
    "turned": turned(),
    "wide": saved(Image.fromarray(np.tile(COLOUR[:3], (1, 9, 1))), "PNG"),
    "narrow": saved(Image.fromarray(np.tile(COLOUR[:, :1], (4, 1, 1))), "BMP"),
    "one pixel": saved(Image.fromarray(COLOUR[:1, :1]), "PNG"),
    "odd margin": saved(Image.fromarray(COLOUR[:32, :37]), "PNG"),
    "array": COLOUR,
    "grey array": GREY,
    "one channel": GREY[..., None],
    "pillow": Image.fromarray(COLOUR),
    "pillow with palette": transparent_palette(),
}
PREPROCESSINGS = [
    Preprocessing(32),
    Preprocessing(33, interpolation="bilinear"),
    Preprocessing(32, resize_mode="squash", mean=(0.5, 0.5, 0.5), std=(0.25, 0.5, 0.3)),
]


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("upright", [False, True])
def test_exported_pixels_equal_the_library(kind: str, upright: bool) -> None:
    for preprocessing in PREPROCESSINGS:
        wanted = open_image(KINDS[kind], 0, upright=upright).views(preprocessing)[0]
        plain = preprocessing.to_dict()
        levels = runtime.resized_pixels(runtime.open_image(KINDS[kind], upright=upright), plain)
        np.testing.assert_array_equal(levels, wanted.numpy())
        pixels = torch.from_numpy(runtime.normalise([levels], plain))
        torch.testing.assert_close(pixels, preprocessing.normalise(wanted[None]))


def failures(path: Path) -> Iterator[tuple[str, Any]]:
    (path / "empty.png").write_bytes(b"")
    (path / "text.png").write_text("hello")
    (path / "cut.png").write_bytes(KINDS["colour"][:200])
    yield from (("missing", path / "no.png"), ("a folder", path), ("empty", path / "empty.png"))
    yield from (("text", path / "text.png"), ("damaged", path / "cut.png"), ("bytes", b"nothing"))
    yield "too long", Image.new("RGB", (1000, 2))
    yield "floats", np.zeros((4, 4, 3))
    yield "floating-point pixels", Image.fromarray(np.zeros((4, 4), dtype=np.float32))
    yield "channels", np.zeros((4, 4, 2), dtype=np.uint8)
    yield "32 bits", Image.fromarray(np.full((4, 4), 70000, dtype=np.int32))


def test_unreadable_images_are_refused_by_name(tmp_path: Path) -> None:
    ours = loaded()
    for number, (_, image) in enumerate(failures(tmp_path)):
        with pytest.raises(ImageError) as library:
            open_image(image, 1).views(Preprocessing(32))
        with pytest.raises(ImageError) as error:
            ours.predict_proba([COLOUR, image])
        assert error.value.name == (str(image) if isinstance(image, Path) else "image 1"), number
        assert error.value.reason == library.value.reason


def test_images_are_taken_a_batch_at_a_time_and_bad_ones_may_be_skipped() -> None:
    taken = 0

    def many() -> Iterator[Any]:
        nonlocal taken
        for number in range(200):
            taken += 1
            yield b"no image" if number == 3 else COLOUR

    stream = loaded().stream(many(), skip_unreadable=True)
    first = next(stream)
    assert taken == 32
    assert list(first.unreadable) == ["image 3"]
    assert first.names[2:4] == ["image 2", "image 4"]
    assert len(first.probabilities) == len(first.features) == 31
    assert sum(len(batch.names) for batch in stream) == 200 - 32


def test_one_image_many_and_none() -> None:
    ours = loaded()
    one = ours.predict_proba(COLOUR)
    assert one.shape == (1, 10)
    np.testing.assert_allclose(ours.predict_proba(np.stack([COLOUR] * 3)), np.repeat(one, 3, axis=0), atol=1e-5)
    assert ours.predict_proba([]).shape == (0, 10)
    assert ours.answers([]) == []
    (batch,) = ours.stream([b"no", b"image"], skip_unreadable=True)
    assert batch.probabilities.shape == (0, 10)
    for wrong in (3, np.zeros((3, 40, 40), dtype=np.uint8), [object()]):
        with pytest.raises(ValueError, match=r"images must be|may be one image|must be a path"):
            ours.predict_proba(wrong)


def test_probabilities_do_not_depend_on_the_batch() -> None:
    ours, images = loaded(), pictures(40)
    alone = np.concatenate([ours.predict_proba(image) for image in images])
    np.testing.assert_allclose(ours.predict_proba(images), alone, atol=1e-5)
