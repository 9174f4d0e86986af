"""Files that can be derived in a dataset's folder: splits from its annotations, names of classes, frames of videos, and
patches of tissue.

Splits are made where the fixed split file is missing, by the public rules with a fixed seed. The public code draws such
splits anew on every machine, so results on them cannot be compared with published numbers. Where there are official
lists to train and to test, 20 % of each class to train become val; elsewhere 50, 20 and 30 % train, validate and test.

Patches of tissue are benign or malignant by the rules that PLIP was evaluated with, and 70 % train (seed 1).

    PanNuke      70 % of every tissue and class train, by the same draws as the public preparation. Malignant are at
                 least 10 neoplastic nuclei, and more than 30 % of all nuclei; benign is no neoplastic nucleus; what has
                 no nucleus, or is neither, is left out. Nuclei are counted as the public preparation counts them:
                 distinct values of a mask channel in 8 bits, less one; the background channel is among all.
    DigestPath   slides are made 2 to 32 times smaller and cut into patches of 224 pixels that overlap by a tenth. A
                 patch needs tissue on half of it (a pixel with all colours at 200 or more is background). It is
                 malignant if the mask (above 10, because masks are JPEG files) covers half of it, benign if it covers
                 nothing, and left out between. 70 % of the slides of each kind train; the public preparation deals
                 single patches out, so that overlapping patches of one slide train and test.
"""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from calprompt.data.catalogue.layouts import CLASSNAMES, ClassFolders, NamedRows, SplitFile, rows_of_folders
from calprompt.data.dataset import SPLITS, read_lines
from calprompt.data.listings import subfolders
from calprompt.data.split_files import NamedRow, write_split_file
from calprompt.data.streams import require_video_decoder
from calprompt.errors import DataError
from calprompt.files import read_json, write_bytes

if TYPE_CHECKING:
    from calprompt.data.catalogue import Entry
    from calprompt.progress import Progress

SEED = 1
IN_THREE = ("train", 0.5), ("val", 0.2)  # shares of a class, and the rest to test
VIDEOS, FRAMES = "UCF-101", "UCF-101-midframes"
QUALITY = 95  # of JPEG


def class_folders(
    folder: Path, images: Path, *, ignored: tuple[str, ...] = (), renamed: Mapping[str, str] | None = None
) -> NamedRows:
    """One folder per class, in case-sensitive order; some are ignored, and some are renamed."""
    folders = [path.name for path in subfolders(images) if path.name not in ignored]
    names = dict(renamed or {})
    rows = rows_of_folders(images, images, folders)
    named = [(path, label, names.get(folders[label], folders[label])) for path, label in rows]
    return _divide(named, *IN_THREE, rest="test")


def pet_lists(folder: Path, images: Path) -> NamedRows:
    """Lines such as 'Abyssinian_201 1 1 1': image, label from 1, and two numbers that are not used."""

    def rows(name: str) -> list[NamedRow]:
        pairs = [line.split()[:2] for line in read_lines(folder / "annotations" / name)]
        return [(f"{image}.jpg", int(label) - 1, image.rpartition("_")[0].lower()) for image, label in pairs]

    return _official(rows("trainval.txt"), rows("test.txt"))


def car_lists(folder: Path, images: Path) -> NamedRows:
    """Annotations in MATLAB files; paths are relative to the dataset's folder."""
    names = [str(name[0]) for name in _matlab(folder / "devkit" / "cars_meta.mat")["class_names"][0]]

    def rows(inside: str, path: Path) -> list[NamedRow]:
        pairs = [(str(row["fname"][0]), int(row["class"][0, 0]) - 1) for row in _matlab(path)["annotations"][0]]
        return [(f"{inside}/{image}", label, year_first(names[label])) for image, label in pairs]

    train = rows("cars_train", folder / "devkit" / "cars_train_annos.mat")
    return _official(train, rows("cars_test", folder / "cars_test_annos_withlabels.mat"))


def flower_labels(folder: Path, images: Path) -> NamedRows:
    """Image i of jpg/ has the i-th label, from 1, whose name is in cat_to_name.json."""
    names = read_json(folder / "cat_to_name.json")
    labels = [int(label) for label in _matlab(folder / "imagelabels.mat")["labels"][0]]
    rows = [(f"image_{i:05d}.jpg", label - 1, names[str(label)]) for i, label in enumerate(labels, start=1)]
    return _divide(rows, *IN_THREE, rest="test")


def scene_lists(folder: Path, images: Path) -> NamedRows:
    """Paths such as /a/airplane_cabin/sun_….jpg; labels follow ClassName.txt."""
    labels = {line[1:]: label for label, line in enumerate(read_lines(folder / "ClassName.txt"))}

    def row(line: str) -> NamedRow:
        scene = line[1:].rpartition("/")[0]
        return line[1:], labels[scene], scene_name(scene)

    train, test = (_rows(folder / f"{name}_01.txt", row, "ClassName.txt") for name in ("Training", "Testing"))
    return _official(train, test)


def action_lists(folder: Path, images: Path) -> NamedRows:
    """Lines such as 'ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi 1', for the middle frames of those videos."""
    lists = folder / "ucfTrainTestlist"
    labels = {name: int(label) - 1 for label, name in (line.split() for line in read_lines(lists / "classInd.txt"))}

    def row(line: str) -> NamedRow:
        action, _, video = line.split()[0].partition("/")
        return f"{action_name(action)}/{video.removesuffix('.avi')}.jpg", labels[action], action_name(action)

    train, test = (_rows(lists / f"{name}list01.txt", row, "classInd.txt") for name in ("train", "test"))
    return _official(train, test)


def _rows(path: Path, row: Callable[[str], NamedRow], classes: str) -> list[NamedRow]:
    """A row for every line of a list; `classes` is the file with the classes that it may have."""
    rows = []
    for line in read_lines(path):
        try:
            rows.append(row(line))
        except KeyError as error:
            raise DataError(f"{path}: the class of {line} is not in {classes}") from error
    return rows


def year_first(name: str) -> str:
    """A car's name with the year in front.

    >>> year_first("AM General Hummer SUV 2000")
    '2000 AM General Hummer SUV'
    """
    words = name.split(" ")
    return " ".join([words[-1], *words[:-1]])


def scene_name(path: str) -> str:
    """The name of a scene from its path.

    >>> scene_name("a/apse/indoor")
    'indoor apse'
    """
    return " ".join(reversed(path.split("/")[1:]))


def action_name(name: str) -> str:
    """The name of an action, split at its capitals.

    >>> action_name("ApplyEyeMakeup")
    'Apply_Eye_Makeup'
    """
    return "_".join(re.findall("[A-Z][^A-Z]*", name))


def _divide(rows: list[NamedRow], *shares: tuple[str, float], rest: str) -> NamedRows:
    """Some shares of every class to some splits and the rest to another, from one stream of random numbers."""
    rng = random.Random(SEED)
    classes: dict[int, list[NamedRow]] = {}
    for row in sorted(rows, key=lambda row: (row[1], row[0])):
        classes.setdefault(row[1], []).append(row)
    split: NamedRows = {kind: [] for kind in (*dict(shares), rest)}
    for members in classes.values():
        rng.shuffle(members)
        start = 0
        for kind, share in shares:
            stop = start + round(share * len(members))
            split[kind] += members[start:stop]
            start = stop
        split[rest] += members[start:]
    return split


def _official(train: list[NamedRow], test: list[NamedRow]) -> NamedRows:
    return {**_divide(train, ("val", 0.2), rest="train"), "test": test}


def _matlab(path: Path) -> Any:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise DataError(f"{path.name} is a MATLAB file; reading it needs SciPy: pip install scipy") from error
    if not path.is_file():
        raise DataError(f"cannot read {path}: it is not there")
    return loadmat(path)


def own_split(entry: Entry, folder: Path, progress: Progress) -> list[str]:
    """split_own_X.json from the dataset's annotations, if it has no fixed split."""
    layout = entry.layout
    assert isinstance(layout, SplitFile)
    for name in (layout.file, layout.own_file):
        if (folder / name).is_file():
            return [f"{folder / name} is there already"]
    images = layout.image_folder(folder)
    if images is None:
        raise DataError(f"{folder / layout.images[0]}/ is not there; unpack the images first")
    write_split_file(folder / layout.own_file, layout.split(folder, images))
    return [f"made {folder / layout.own_file}: a split of your own, not comparable with published numbers"]


def imagenet_names(entry: Entry, folder: Path, progress: Progress) -> list[str]:
    """classnames.txt: CLIP's names in the order of the sorted WordNet numbers."""
    layout = entry.layout
    assert isinstance(layout, ClassFolders)
    if (folder / CLASSNAMES).is_file():
        return [f"{folder / CLASSNAMES} is there already"]
    train = next((folder / place.train for place in layout.places if (folder / place.train).is_dir()), None)
    wnids = [] if train is None else [path.name for path in subfolders(train)]
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    if len(wnids) != len(IMAGENET_CLASSNAMES):
        raise DataError(
            f"{train or folder / layout.places[0].train} has {len(wnids)} folders, and there are names for "
            f"{len(IMAGENET_CLASSNAMES)} classes; unpack the training images first"
        )
    lines = "".join(f"{wnid} {name}\n" for wnid, name in zip(wnids, IMAGENET_CLASSNAMES, strict=True))
    write_bytes(folder / CLASSNAMES, lines.encode())
    return [f"made {folder / CLASSNAMES}"]


def variants_list(entry: Entry, folder: Path, progress: Progress) -> list[str]:
    """variants.txt: the class names in the three lists, sorted by their bytes, as the official one is."""
    path = folder / "variants.txt"
    if path.is_file():
        return [f"{path} is there already"]
    names = {line.partition(" ")[2] for kind in SPLITS for line in read_lines(folder / f"images_variant_{kind}.txt")}
    write_bytes(path, "".join(f"{name}\n" for name in sorted(names)).encode())
    return [f"made {path}: {len(names)} variants"]


def ucf101_frames(entry: Entry, folder: Path, progress: Progress) -> list[str]:
    """Make the missing frames, and a split from the official lists if there is no fixed one.

    Of a video with n frames the middle one is number n // 2, counted from 0; the rule of the published frames is not
    known, so these may be a frame off.
    """
    layout = entry.layout
    assert isinstance(layout, SplitFile)
    videos = sorted((folder / VIDEOS).glob("*/*.avi"))
    if not videos and not (folder / FRAMES).is_dir():
        raise DataError(f"{folder / VIDEOS} has no videos; expected <action>/<video>.avi in it")
    frames = [(video, folder / FRAMES / action_name(video.parent.name) / f"{video.stem}.jpg") for video in videos]
    todo = [(video, frame) for video, frame in frames if not frame.is_file()]
    if todo:
        require_video_decoder(
            f". Or get the middle frames that CoOp's page on datasets links to, and unpack them as {FRAMES}/"
        )
    for done, (video, frame) in enumerate(todo, start=1):
        frame.parent.mkdir(parents=True, exist_ok=True)
        partial = frame.with_name(f".{frame.name}")
        middle_frame(video).save(partial, format="JPEG", quality=QUALITY)
        partial.replace(frame)
        progress("middle frames", done, len(todo), "")
    made = [f"made {len(todo):,} of {len(frames):,} frames in {folder / FRAMES}"]
    if not (folder / layout.file).is_file() and (folder / "ucfTrainTestlist").is_dir():
        made += own_split(entry, folder, progress)
    return made


def middle_frame(path: Path) -> Image.Image:
    """The middle one of a video's frames."""
    import av

    try:
        with av.open(str(path)) as video:
            frames = list(video.decode(video=0))
        image: Image.Image = frames[len(frames) // 2].to_image()
    except Exception as error:  # a damaged video makes decoders raise nearly anything
        raise DataError(f"{path} cannot be decoded: {str(error) or type(error).__name__}; get it again") from error
    return image


PATCHES = "patches"  # folder that is made
TRAIN_SHARE = 0.7
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
    found = entry.layout.place(folder) if isinstance(entry.layout, ClassFolders) else None
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
    """patches/{train,test}/{benign,malignant}/ from the arrays of the three folds, fold1/{images,masks,types}.npy, …"""
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
    """patches/{train,test}/{benign,malignant}/ from slides, and X_mask.jpg beside the positive ones."""
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
