"""Image files of every kind: those that become RGB, and forty kinds of bad ones told of in one report."""

import gzip
import io
import os
import pickle
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import samples
from calprompt.clip.preprocessing import Preprocessing
from calprompt.data.checks import drop_images, find_unreadable, image_digests, unreadable_error
from calprompt.data.decoding import decode, read
from calprompt.data.images import ImageFiles
from calprompt.data.load import load_dataset
from calprompt.errors import CalpromptError
from calprompt.runs.planning import plan
from data import trees

NOISE = np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype=np.uint8)


def saved(path: Path, image: Image.Image, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def pixels(path: Path, **options) -> np.ndarray:
    image = decode(read(path), **options)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("mode", ["RGBA", "P", "L", "LA", "1", "CMYK", "YCbCr"])
def test_modes_become_rgb_as_pillow_converts_them(tmp_path: Path, mode: str) -> None:
    image = Image.fromarray(NOISE).convert(mode)
    path = saved(tmp_path / f"a.{'tif' if mode in ('CMYK', 'YCbCr') else 'png'}", image)
    assert np.array_equal(pixels(path), np.asarray(image.convert("RGB")))


def test_transparency_is_dropped_as_in_the_public_code(tmp_path: Path) -> None:
    alpha = np.dstack([NOISE, np.full(NOISE.shape[:2], 7, np.uint8)])
    assert np.array_equal(pixels(saved(tmp_path / "a.png", Image.fromarray(alpha))), NOISE)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bits_keep_the_upper_eight(tmp_path: Path, suffix: str) -> None:
    deep = np.arange(120, dtype=np.uint16).reshape(12, 10) * 540
    found = pixels(saved(tmp_path / f"a{suffix}", Image.fromarray(deep)))
    assert np.array_equal(found, np.repeat((deep >> 8).astype(np.uint8)[..., None], 3, axis=-1))


def test_the_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "green")]
    for suffix in ("gif", "png", "webp", "tif"):
        options = {"lossless": True} if suffix == "webp" else {}
        path = saved(tmp_path / f"a.{suffix}", frames[0], save_all=True, append_images=frames[1:], **options)
        assert pixels(path)[4, 4].tolist() == [255, 0, 0]


def turned(path: Path) -> Path:
    tag = Image.Exif()
    tag[0x0112] = 6  # taken with the camera on its side
    return saved(path, Image.fromarray(NOISE), exif=tag)


def test_exif_turns_an_image_only_if_that_is_wanted(tmp_path: Path) -> None:
    path = turned(tmp_path / "a.png")
    assert np.array_equal(pixels(path), NOISE)
    assert np.array_equal(pixels(path, upright=True), np.rot90(NOISE, -1))
    lying = ImageFiles(tmp_path, ("a.png",))
    standing = replace(lying, upright=True)
    assert not torch.equal(*(samples.pixels(images, 0, Preprocessing(8)) for images in (lying, standing)))
    assert lying.digest(0) != standing.digest(0)  # features of one are never taken for those of the other
    samples.picture_folder(tmp_path / "photos", each=4)
    assert all(
        split.images.take([0]).upright for split in load_dataset(tmp_path / "photos", upright=True).splits.values()
    )


def test_content_decides_and_not_the_suffix(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", Image.fromarray(NOISE)).rename(tmp_path / "a.jpg")
    assert np.array_equal(pixels(path), NOISE)


def test_huge_images_are_read_without_a_warning_and_bombs_are_not(tmp_path: Path, monkeypatch) -> None:
    path = saved(tmp_path / "a.png", Image.fromarray(NOISE))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # 120 pixels: Pillow would warn
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
        assert np.array_equal(pixels(path), NOISE)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)  # more than twice as many: it refuses
    with pytest.raises(match="more than 0 million pixels; make it smaller"):
        decode(read(path))


def encoded(kind: str, size: tuple[int, int] = (64, 64), **options) -> bytes:
    held = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)).save(
        held, kind, **options
    )
    return held.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes(255 - byte for byte in data[at : at + 8]) + data[at + 8 :]


def zipped() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("a.jpg", encoded("JPEG"))
    return held.getvalue()


def written(image: Image.Image, kind: str) -> bytes:
    held = io.BytesIO()
    image.save(held, kind)
    return held.getvalue()


def array() -> bytes:
    held = io.BytesIO()
    np.save(held, NOISE)
    return held.getvalue()


JPEG, PNG, GIF, WEBP, BMP = (encoded(kind) for kind in ("JPEG", "PNG", "GIF", "WEBP", "BMP"))
TIFF = encoded("TIFF")
CONTENTS: dict[str, tuple[bytes, str]] = {  # what is in the file, and a word of what is said
    "empty.jpg": (b"", "an empty file"),
    "empty.png": (b"", "an empty file"),
    "zeros.jpg": (bytes(4000), "nothing but zeros"),
    "noise.jpg": (np.random.default_rng(5).bytes(4000), "no image in any format"),
    "text.jpg": (b"this is not a picture\n", "text"),
    "unicode.png": ("ein Käfer".encode() * 99, "text"),
    "utf16.png": ("not a picture".encode("utf-16"), "no image in any format"),
    "page.jpg": (b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "an HTML page"),
    "error.png": (b'<?xml version="1.0"?><Error>AccessDenied</Error>', "XML"),
    "drawing.png": (b'<svg xmlns="http://www.w3.org/2000/svg"></svg>', "an SVG drawing"),
    "json.jpg": (b'{"error": "quota"}', "text"),
    "pointer.jpg": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
    "paper.jpg": (b"%PDF-1.7\n", "a PDF document"),
    "script.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "a PostScript file"),
    "layers.png": (b"8BPS\x00\x01" + bytes(40), "a Photoshop file"),
    "zip.jpg": (zipped(), "a zip archive"),
    "gzip.png": (gzip.compress(PNG), "gzip-compressed"),
    "rar.jpg": (b"Rar!\x1a\x07\x01\x00" + bytes(20), "an archive"),
    "array.png": (array(), "a NumPy array"),
    "pickle.png": (pickle.dumps(NOISE), "no image in any format"),
    "phone.jpg": (b"\x00\x00\x00\x18ftypheic" + bytes(40), "HEIC, which needs a decoder: pip install pillow-heif"),
    "film.jpg": (b"\x00\x00\x00\x18ftypmp42" + bytes(40), "a video"),
    "film.png": (b"RIFF\x00\x00\x00\x00AVI LIST" + bytes(40), "a video"),
    "matroska.png": (b"\x1aE\xdf\xa3" + bytes(40), "a video"),
    "start.jpg": (JPEG[:2], "damaged"),
    "header.jpg": (JPEG[:200], "damaged"),
    "half.jpg": (JPEG[: len(JPEG) // 2], "damaged"),
    "signature.png": (PNG[:8], "damaged"),
    "header.png": (PNG[:40], "damaged"),
    "half.png": (PNG[: len(PNG) // 2], "damaged"),
    "flipped.png": (flipped(PNG, 20), "damaged"),
    "body.png": (flipped(PNG, len(PNG) // 2), "damaged"),
    "half.gif": (GIF[: len(GIF) // 2], "damaged"),
    "start.gif": (GIF[:6], "damaged"),
    "half.webp": (WEBP[: len(WEBP) // 2], "damaged"),
    "half.bmp": (BMP[: len(BMP) // 2], "damaged"),
    "half.tif": (TIFF[: len(TIFF) // 2], "damaged"),
    "short.ppm": (b"P6 90 90 255\n" + bytes(9), "damaged"),
    "bomb.png": (png_of(60_000, 60_000), "million pixels; make it smaller"),
    "strip.png": (png_of(2, 5000), "2 by 5000 pixels; one side may be 200 times the other at most"),
    "float.tif": (written(Image.fromarray(np.ones((8, 8), np.float32)), "TIFF"), "floating-point pixels"),
    "deep.tif": (written(Image.fromarray(np.full((8, 8), 1 << 20, np.int32)), "TIFF"), "more than 16 bits"),
}
PLACES: dict[str, tuple[Callable[[Path], object], str]] = {  # how it is put there
    "folder.jpg": (lambda path: path.mkdir(), "a folder, not a file"),
    "pipe.png": (lambda path: os.mkfifo(path), "not an ordinary file"),
    "nowhere.png": (lambda path: path.symlink_to("gone.png"), "a link to a file that is not there"),
    "circle.png": (lambda path: path.symlink_to(path), "Too many levels|symbolic links"),
    "away.png": (lambda path: path.symlink_to(path.parent), "a folder, not a file"),
}


def bad_folder(root: Path) -> Path:
    """Good images, and every kind of bad one among those of the first class."""
    samples.picture_folder(root, each=12)
    for name, (data, _) in CONTENTS.items():
        (root / "ant" / name).write_bytes(data)
    for name, (make, _) in PLACES.items():
        make(root / "ant" / name)
    return root


def test_forty_kinds_of_bad_images_are_listed_in_one_report(tmp_path: Path) -> None:
    reasons = {name: says for name, (_, says) in (*CONTENTS.items(), *PLACES.items())}
    assert len(reasons) >= 40
    dataset = load_dataset(bad_folder(tmp_path))
    bad = find_unreadable(dataset.splits.values())
    assert set(bad) == {f"ant/{name}" for name in reasons}
    for name, says in reasons.items():
        with pytest.raises(CalpromptError, match=says):
            raise CalpromptError(bad[f"ant/{name}"])
    report = str(unreadable_error(bad))
    with pytest.raises(CalpromptError) as caught:
        image_digests(dataset.splits)
    assert str(caught.value) == report, "also if only the beginnings of files were looked at before"
    assert report.startswith(
        f"{len(reasons)} images cannot be read; replace or remove, or leave out with skip_bad=True"
    )
    assert all(report.count(f"ant/{name} (") == 1 for name in reasons)
    assert len(report.splitlines()) == len(reasons) + 1


def test_a_run_stops_before_training_or_goes_on_without_them(tmp_path: Path) -> None:
    config = samples.config(bad_folder(tmp_path / "photos"), tuner="zero-shot", shots=None)
    with pytest.raises(CalpromptError, match=r"images cannot be read.*\n"):
        plan(config)
    ready = plan(replace(config, skip_bad=True))
    assert len(ready.skipped) == len(CONTENTS) + len(PLACES)
    assert not {name for split in (ready.base.train, ready.base.test) for name in split.images.paths} & set(
        ready.skipped
    )
    for name in (*CONTENTS, *PLACES):
        path = tmp_path / "photos" / "ant" / name
        path.rename(tmp_path / name) if name != "circle.png" else path.unlink()
    clean = plan(config)
    assert plan(replace(config, skip_bad=True)).fingerprint == clean.fingerprint != ready.fingerprint


def test_shots_are_drawn_again_without_a_bad_image(tmp_path: Path) -> None:
    config = samples.config(samples.picture_folder(tmp_path, each=20), tuner="zero-shot", shots=4, skip_bad=True)
    before = plan(config)
    (tmp_path / before.base.train.images.paths[0]).write_bytes(b"")
    after = plan(config)
    assert list(after.skipped) == [before.base.train.images.paths[0]]
    assert len(after.base.train) == len(before.base.train)
    assert before.base.train.images.paths[0] not in after.base.train.images.paths


def test_a_class_without_a_readable_image_is_reported(tmp_path: Path) -> None:
    dataset = load_dataset(samples.picture_folder(tmp_path, each=4))
    bad = {path: "damaged" for path in dataset.train.images.paths if path.startswith("bee/")}
    with pytest.raises(CalpromptError, match=r"without 2 images that cannot be read, .*no training image of bee"):
        drop_images(dataset, bad)


def test_a_listed_image_that_is_not_there_is_named(tmp_path: Path) -> None:
    trees.split_file(tmp_path, "eurosat")
    (tmp_path / "eurosat" / "2750" / "Forest" / "Forest_0.jpg").unlink()
    dataset = load_dataset("eurosat", root=tmp_path)
    assert find_unreadable(dataset.splits.values()) == {"Forest/Forest_0.jpg": "No such file or directory"}


def test_a_long_report_is_cut() -> None:
    assert str(unreadable_error({f"{n}.png": "damaged" for n in range(130)})).endswith("… and 30 more")
    assert str(unreadable_error({"a.png": "damaged"})).startswith("one image cannot be read")
