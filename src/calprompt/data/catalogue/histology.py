"""Slides and patches of tissue as pictures to classify, benign or malignant, by the rules that PLIP was evaluated with.

PanNuke

    Fold 1/images/fold1/{images,types}.npy, Fold 1/masks/fold1/masks.npy, … -> patches/{train,test}/{benign,malignant}/

    malignant  at least 10 neoplastic nuclei, and more than 30 % of all nuclei
    benign     no neoplastic nucleus
    left out   no nucleus at all, and all that is neither of the above

70 % of every tissue and class train, by the same draws (seed 1) as the public preparation. Nuclei are counted as it
counts them: distinct values of a mask channel in 8 bits, less one; the background channel is among all.

DigestPath

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from calprompt.data.catalogue.layouts import NamedFolders
from calprompt.errors import DataError

if TYPE_CHECKING:
    from calprompt.data.catalogue.entry import Entry
    from calprompt.progress import Progress

PATCHES = "patches"  # folder that is made
SEED, TRAIN_SHARE = 1, 0.7
MALIGNANT_NUCLEI, MALIGNANT_SHARE = 10, 0.3  # of neoplastic ones, from which on a patch is malignant
KINDS = ("malignant", "benign")  # in the order of the public preparation
SLIDES = ("tissue-train-pos-v1", "tissue-train-neg")  # with masks, and without
PATCH_SIZE, PATCH_OVERLAP = 224, 0.1
REDUCTIONS = (2, 4, 8, 16, 32)
BACKGROUND_LEVEL, MASK_LEVEL = 200, 10  # pixel values
TISSUE_SHARE, TUMOUR_SHARE = 0.5, 0.5  # shares of a patch

Patch = tuple[int, int, str]  # fold, number in it, tissue
Pixels = np.ndarray[Any, Any]


def _there(entry: Entry, folder: Path) -> list[str]:
    """A line about the class folders that the dataset has already, if it has any."""
    found = entry.layout.place(folder) if isinstance(entry.layout, NamedFolders) else None
    return [] if found is None else [f"{folder / found.train} and {folder / found.test} are there already"]


@contextmanager
def _patches(folder: Path) -> Iterator[Callable[[str, str, str, Pixels], None]]:
    """Writes patches/ of a dataset, which appears when all are written; what an interrupted preparation left goes."""
    work = folder / ".patches"
    shutil.rmtree(work, ignore_errors=True)

    def write(part: str, kind: str, name: str, pixels: Pixels) -> None:
        path = work / part / kind / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)

    yield write
    work.rename(folder / PATCHES)


def pannuke_patches(entry: Entry, folder: Path, progress: Progress) -> list[str]:
    """Make patches/ from the arrays of the three folds."""
    if (folder / PATCHES).is_dir():
        return [f"{folder / PATCHES} is there already"]
    if ready := _there(entry, folder):
        return ready
    images, masks, tissues = (_arrays(folder, name) for name in ("images", "masks", "types"))
    patches: dict[str, list[Patch]] = {kind: [] for kind in KINDS}
    total, done = sum(len(fold) for fold in images), 0
    for fold in range(3):
        for number in range(len(images[fold])):
            kind = diagnosis(np.asarray(masks[fold][number]))
            if kind is not None:
                patches[kind].append((fold, number, str(tissues[fold][number]).lower().replace("_", " ")))
            done += 1
            progress("reading masks", done, total, "")
    rows = [(kind, number, patch) for kind in KINDS for number, patch in enumerate(patches[kind])]
    train = split_rows([(patch[2], kind) for kind, _, patch in rows])
    with _patches(folder) as write:
        for index, (kind, number, (fold, place, tissue)) in enumerate(rows):
            pixels = np.asarray(images[fold][place]).astype(np.uint8)
            write("train" if index in train else "test", kind, f"{tissue}_{kind}_{number:04d}.png", pixels)
            progress("writing patches", index + 1, len(rows), "")
    counts = ", ".join(f"{len(patches[kind]):,} {kind}" for kind in KINDS)
    return [f"made {folder / PATCHES}: {counts}, of which {len(train):,} train"]


def diagnosis(mask: Pixels) -> str | None:
    """Malignant, benign, or neither, from a mask [256, 256, 6], whose first channel has the neoplastic nuclei."""
    small = mask.astype(np.uint8)
    if not small[..., :5].any():
        return None
    nuclei = [len(np.unique(small[..., channel])) - 1 for channel in range(6)]
    if nuclei[0] == 0:
        return "benign"
    return "malignant" if nuclei[0] >= MALIGNANT_NUCLEI and nuclei[0] / sum(nuclei) > MALIGNANT_SHARE else None


def split_rows(rows: list[tuple[str, str]]) -> set[int]:
    """Indices of the rows (tissue, class) that train: shuffled, then shuffled again within tissue and class."""
    order = [int(index) for index in np.random.RandomState(SEED).permutation(len(rows))]
    train: set[int] = set()
    for group in dict.fromkeys(rows[index] for index in order):
        members = [index for index in order if rows[index] == group]
        shuffled = np.random.RandomState(SEED).permutation(len(members))
        train |= {members[place] for place in shuffled[: int(len(members) * TRAIN_SHARE)]}
    return train


def _arrays(folder: Path, name: str) -> list[Pixels]:
    """The array of every fold, not read into memory."""
    arrays = []
    for fold in (1, 2, 3):
        paths = sorted(folder.glob(f"**/fold{fold}/{name}.npy"))
        if len(paths) != 1:
            raise DataError(
                f"{folder} has {len(paths) or 'no'} files fold{fold}/{name}.npy; unpack the three folds of PanNuke "
                "there, once each"
            )
        arrays.append(np.load(paths[0], mmap_mode=None if name == "types" else "r"))
    return arrays


def digestpath_patches(entry: Entry, folder: Path, progress: Progress) -> list[str]:
    """Make patches/ from the slides and masks."""
    if (folder / PATCHES).is_dir():
        return [f"{folder / PATCHES} is there already"]
    if not any((folder / name).is_dir() for name in SLIDES) and (ready := _there(entry, folder)):
        return ready
    slides: list[tuple[Path, Path | None, str]] = []
    for name in SLIDES:
        paths = sorted(path for path in (folder / name).glob("*.jpg") if not path.stem.endswith("_mask"))
        if not paths:
            raise DataError(f"{folder / name} has no slides; unpack DigestPath's colonoscopy training images there")
        masks = [path.with_name(f"{path.stem}_mask.jpg") if "pos" in name else None for path in paths]
        missing = [mask for mask in masks if mask is not None and not mask.is_file()]
        if missing:
            raise DataError(f"{missing[0]} is not there; every slide of {name} needs its mask")
        parts = ["train"] * int(len(paths) * TRAIN_SHARE) + ["test"] * (len(paths) - int(len(paths) * TRAIN_SHARE))
        random.Random(SEED).shuffle(parts)
        slides += list(zip(paths, masks, parts, strict=True))
    counts = Counter[str]()
    with _patches(folder) as write:
        for done, (slide, mask, part) in enumerate(slides, start=1):
            for number, (smaller, patch, kind) in enumerate(patches(slide, mask)):
                write(part, kind, f"{slide.stem}_{smaller}_{number:05d}.png", patch)
                counts[f"{kind} to {part}"] += 1
            progress("cutting slides", done, len(slides), "")
    made = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
    return [f"made {folder / PATCHES}: {made}"]


def patches(slide: Path, mask: Path | None) -> Iterator[tuple[int, Pixels, str]]:
    """Reduction, pixels and diagnosis of every patch that is used; without a mask nothing is malignant."""
    with Image.open(slide) as opened:
        picture = opened.convert("RGB")
    drawn = None
    if mask is not None:
        with Image.open(mask) as opened:
            drawn = opened.convert("L")
    for smaller in REDUCTIONS:
        size = (int(np.round(picture.width / smaller)), int(np.round(picture.height / smaller)))
        if min(size) < PATCH_SIZE:
            continue
        pixels = np.asarray(picture.resize(size))
        tumour = None if drawn is None else np.asarray(drawn.resize(size, Image.Resampling.NEAREST)) > MASK_LEVEL
        for top, left in corners(*pixels.shape[:2]):
            patch = pixels[top : top + PATCH_SIZE, left : left + PATCH_SIZE]
            if 1 - (patch >= BACKGROUND_LEVEL).all(axis=-1).mean() < TISSUE_SHARE:
                continue
            covered = 0.0 if tumour is None else tumour[top : top + PATCH_SIZE, left : left + PATCH_SIZE].mean()
            if covered == 0 or covered >= TUMOUR_SHARE:
                yield smaller, patch, "benign" if covered == 0 else "malignant"


def corners(height: int, width: int) -> Iterator[tuple[int, int]]:
    """Top and left of the patches; as in the public preparation, one that ends at the edge of the slide is left out."""
    step = PATCH_SIZE * (1 - PATCH_OVERLAP)
    for top in np.arange(0, height, step).astype(int):
        for left in np.arange(0, width, step).astype(int):
            if top + PATCH_SIZE < height and left + PATCH_SIZE < width:
                yield int(top), int(left)
