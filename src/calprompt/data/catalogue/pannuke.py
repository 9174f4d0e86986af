"""PanNuke as pictures to classify, benign or malignant, by the rule that PLIP was evaluated with.

    Fold 1/images/fold1/{images,types}.npy, Fold 1/masks/fold1/masks.npy, … -> patches/{train,test}/{benign,malignant}/

malignant  at least 10 neoplastic nuclei, and more than 30 % of all nuclei
benign     no neoplastic nucleus
left out   no nucleus at all, and all that is neither of the above

70 % of every tissue and class train, by the same draws (seed 1) as the public preparation. Nuclei are counted as it
counts them: distinct values of a mask channel in 8 bits, less one; the background channel is among all.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from calprompt.data.catalogue.layouts import ready_images
from calprompt.errors import DataError

if TYPE_CHECKING:
    from calprompt.data.catalogue.entry import Entry
    from calprompt.progress import Progress

SEED, TRAIN = 1, 0.7
NUCLEI, SHARE = 10, 0.3  # of neoplastic ones, from which on a patch is malignant
KINDS = ("malignant", "benign")  # in the order of the public preparation

Patch = tuple[int, int, str]  # fold, number in it, tissue


def pannuke_patches(entry: Entry, folder: Path, progress: Progress) -> list[str]:
    """Make patches/ from the arrays of the three folds."""
    if (folder / "patches").is_dir():
        return [f"{folder / 'patches'} is there already"]
    ready = ready_images(entry, folder)
    if ready is not None:
        return [ready]
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
    work = folder / ".patches"
    shutil.rmtree(work, ignore_errors=True)  # of an interrupted preparation
    for index, (kind, number, (fold, place, tissue)) in enumerate(rows):
        path = work / ("train" if index in train else "test") / kind / f"{tissue}_{kind}_{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(images[fold][place]).astype(np.uint8)).save(path)
        progress("writing patches", index + 1, len(rows), "")
    work.rename(folder / "patches")
    counts = ", ".join(f"{len(patches[kind]):,} {kind}" for kind in KINDS)
    return [f"made {folder / 'patches'}: {counts}, of which {len(train):,} train"]


def diagnosis(mask: np.ndarray[Any, Any]) -> str | None:
    """Malignant, benign, or neither, from a mask [256, 256, 6], whose first channel has the neoplastic nuclei."""
    small = mask.astype(np.uint8)
    if not small[..., :5].any():
        return None
    nuclei = [len(np.unique(small[..., channel])) - 1 for channel in range(6)]
    if nuclei[0] == 0:
        return "benign"
    return "malignant" if nuclei[0] >= NUCLEI and nuclei[0] / sum(nuclei) > SHARE else None


def split_rows(rows: list[tuple[str, str]]) -> set[int]:
    """Indices of the rows (tissue, class) that train: shuffled, then shuffled again within tissue and class."""
    order = [int(index) for index in np.random.RandomState(SEED).permutation(len(rows))]
    train: set[int] = set()
    for group in dict.fromkeys(rows[index] for index in order):
        members = [index for index in order if rows[index] == group]
        shuffled = np.random.RandomState(SEED).permutation(len(members))
        train |= {members[place] for place in shuffled[: int(len(members) * TRAIN)]}
    return train


def _arrays(folder: Path, name: str) -> list[np.ndarray[Any, Any]]:
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
