"""DigestPath's colonoscopy slides as pictures to classify, benign or malignant, by PLIP's rule for patches.

    tissue-train-pos-v1/X.jpg, X_mask.jpg   ->   patches/{train,test}/{benign,malignant}/X_2_00017.png
    tissue-train-neg/Y.jpg

The two folders of slides lie in the dataset's folder, or in its Colonoscopy_tissue_segment_dataset/, where PLIP's
scripts have them.

Slides are made 2, 4, 8, 16 and 32 times smaller and cut into patches of 224 pixels that overlap by a tenth. A patch
needs tissue on half of it (a pixel with all colours at 200 or more is background). It is malignant if the mask (above
10, because masks are JPEG files) covers half of it, benign if the mask covers nothing, and left out between.

70 % of the slides of each kind train (seed 1). The public preparation deals single patches out instead, so that
overlapping patches of one slide train and test; here a slide is in one of the two only.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from calprompt.data.catalogue.layouts import ready_images
from calprompt.errors import DataError

if TYPE_CHECKING:
    from calprompt.data.catalogue.entry import Entry
    from calprompt.progress import Progress

SLIDES = ("tissue-train-pos-v1", "tissue-train-neg")  # with masks, and without
SLIDE = r"([^/]+?)_(?:downsample=)?\d+_\d{5}\.png$"  # in the name of a patch, made here or by PLIP's script
SEED, TRAIN = 1, 0.7
SIZE, OVERLAP = 224, 0.1
SMALLER = (2, 4, 8, 16, 32)
BACKGROUND, MASK = 200, 10  # pixel values
TISSUE, TUMOUR = 0.5, 0.5  # shares of a patch

Pixels = np.ndarray[Any, Any]


def digestpath_patches(entry: Entry, folder: Path, progress: Progress) -> list[str]:
    """Make patches/ from the slides and masks."""
    if (folder / "patches").is_dir():
        return [f"{folder / 'patches'} is there already"]
    ready = None if any((folder / name).is_dir() for name in SLIDES) else ready_images(entry, folder)
    if ready is not None:
        return [ready]
    slides: list[tuple[Path, Path | None, str]] = []
    for name in SLIDES:
        paths = sorted(path for path in (folder / name).glob("*.jpg") if not path.stem.endswith("_mask"))
        if not paths:
            raise DataError(f"{folder / name} has no slides; unpack DigestPath's colonoscopy training images there")
        masks = [path.with_name(f"{path.stem}_mask.jpg") if "pos" in name else None for path in paths]
        missing = [mask for mask in masks if mask is not None and not mask.is_file()]
        if missing:
            raise DataError(f"{missing[0]} is not there; every slide of {name} needs its mask")
        parts = ["train"] * int(len(paths) * TRAIN) + ["test"] * (len(paths) - int(len(paths) * TRAIN))
        random.Random(SEED).shuffle(parts)
        slides += list(zip(paths, masks, parts, strict=True))
    work, counts = folder / ".patches", Counter[str]()
    shutil.rmtree(work, ignore_errors=True)  # of an interrupted preparation, which may have split the slides otherwise
    for done, (slide, mask, part) in enumerate(slides, start=1):
        for number, (smaller, patch, kind) in enumerate(patches(slide, mask)):
            path = work / part / kind / f"{slide.stem}_{smaller}_{number:05d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(patch).save(path)
            counts[f"{kind} to {part}"] += 1
        progress("cutting slides", done, len(slides), "")
    work.rename(folder / "patches")
    return [f"made {folder / 'patches'}: " + ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))]


def patches(slide: Path, mask: Path | None) -> Iterator[tuple[int, Pixels, str]]:
    """Reduction, pixels and diagnosis of every patch that is used; without a mask nothing is malignant."""
    with Image.open(slide) as opened:
        picture = opened.convert("RGB")
    drawn = None
    if mask is not None:
        with Image.open(mask) as opened:
            drawn = opened.convert("L")
    for smaller in SMALLER:
        size = (int(np.round(picture.width / smaller)), int(np.round(picture.height / smaller)))
        if min(size) < SIZE:
            continue
        pixels = np.asarray(picture.resize(size))
        tumour = None if drawn is None else np.asarray(drawn.resize(size, Image.Resampling.NEAREST)) > MASK
        for top, left in corners(*pixels.shape[:2]):
            patch = pixels[top : top + SIZE, left : left + SIZE]
            if 1 - (patch >= BACKGROUND).all(axis=-1).mean() < TISSUE:
                continue
            covered = 0.0 if tumour is None else tumour[top : top + SIZE, left : left + SIZE].mean()
            if covered == 0 or covered >= TUMOUR:
                yield smaller, patch, "benign" if covered == 0 else "malignant"


def corners(height: int, width: int) -> Iterator[tuple[int, int]]:
    """Top and left of the patches; as in the public preparation, one that ends at the edge of the slide is left out."""
    step = SIZE * (1 - OVERLAP)
    for top in np.arange(0, height, step).astype(int):
        for left in np.arange(0, width, step).astype(int):
            if top + SIZE < height and left + SIZE < width:
                yield int(top), int(left)
