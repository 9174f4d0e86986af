"""The embedded datasets as folders of picture files, like any other dataset.

Files are BMP, which is not compressed, so that not only pixels but bytes are the same everywhere. A folder is made
beside its final place and moved there when it is complete, so there is never half of one. Its name has a digest of
pixels and class names in it, so another version of the package makes another folder.
"""

from __future__ import annotations

import re
import secrets
import shutil
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from PIL import Image

from calprompt.cache import ENVIRONMENT, cache_folder
from calprompt.errors import CalpromptError
from calprompt.pocket.sheets import DATA, Sheet

MODELS = {name: Path(__file__).parent / folder for name, folder in (("pocket", "model"), ("pocket-photo", "photo"))}
FOR_PHOTOGRAPHS = "pocket-photo"
FINGERPRINTS = {  # of the models, loaded as backbones
    "pocket": "d371372bc62ae06ca0effb02a6cf05c15d2088e9f527837350810dfa8b0c4491",
    "pocket-photo": "4e3303c699e4edc1d055b888cf9c05ca12501cd86e0fd52422ac5c33ec9a5efa",
}
HOUR = 3600


def names() -> list[str]:
    """Names of the embedded datasets, without "pocket_"."""
    return sorted(path.stem for path in DATA.glob("*.json"))


@cache
def sheet(name: str) -> Sheet:
    """What a dataset contains."""
    return Sheet.read(DATA, name)


def rows(name: str, split: str) -> list[tuple[str, int]]:
    """File and label of every picture of a split."""
    dataset = sheet(name)
    count = dataset.record["pictures"].get(split, 0)
    return [
        (f"{split}/{_slug(class_name)}/{number:03d}.bmp", label)
        for label, class_name in enumerate(dataset.class_names)
        for number in range(count)
    ]


def folder(name: str) -> Path:
    """The folder with the dataset's pictures, made if it does not exist."""
    home = cache_folder("pocket")
    place = home / f"{name}-{sheet(name).digest[:12]}"
    if not place.is_dir():
        try:
            _make(name, place)
        except OSError as error:
            raise CalpromptError(
                f"cannot write the pictures of 'pocket_{name}' to {home}: {error.strerror or error}; make room there, "
                f"or set {ENVIRONMENT} to a folder that can be written to"
            ) from error
    return place


def _make(name: str, place: Path) -> None:
    partial = place.with_name(f".{place.name}-{secrets.token_hex(4)}")
    _clear(place.parent, name)
    try:
        _write(name, partial)
        partial.rename(place)
    except OSError:
        if not place.is_dir():  # otherwise another process was first and made the same
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(name: str, place: Path) -> None:
    for split in sheet(name).record["pictures"]:
        for (path, _), (_, _, pixels) in zip(rows(name, split), sheet(name).checked(split), strict=True):
            file = place / path
            if path.endswith("/000.bmp"):
                file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)


def _clear(home: Path, name: str) -> None:
    """Remove partial folders of killed processes: making a dataset takes seconds, so after an hour none is in use."""
    for partial in home.glob(f".{name}-*"):
        with suppress(OSError):
            if time.time() - partial.stat().st_mtime > HOUR:
                shutil.rmtree(partial)


def _slug(class_name: str) -> str:
    """A class name as a folder name that every file system takes: ASCII only, unlike `calprompt.text.slug`.

    >>> _slug("Côte d'Ivoire")
    'C_te_d_Ivoire'
    """
    return re.sub(r"[^A-Za-z0-9-]+", "_", class_name)
