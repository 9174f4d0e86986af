"""Small trees in the layouts that the field's datasets have on disk."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

TRAIN, VAL, TEST = 3, 1, 2  # images a class

# the image folder, a file's place in it, and (folder or first part of the file's name, class name) in order of label
SPLIT_FILES = {
    "caltech101": (
        "caltech-101/split_zhou_Caltech101.json",
        "101_ObjectCategories",
        "{}/image_{:04d}.jpg",
        [("Faces", "face"), ("Leopards", "leopard"), ("Motorbikes", "motorbike"), ("accordion", "accordion")],
    ),
    "oxford_pets": (
        "oxford_pets/split_zhou_OxfordPets.json",
        "images",
        "{}_{}.jpg",
        [("Abyssinian", "abyssinian"), ("american_bulldog", "american_bulldog"), ("Bengal", "bengal"), ("pug", "pug")],
    ),
    "stanford_cars": (
        "stanford_cars/split_zhou_StanfordCars.json",
        ".",
        "cars_train/{}{:05d}.jpg",
        [("0", "2000 AM General Hummer SUV"), ("1", "2012 Acura RL"), ("2", "2012 Audi R8"), ("3", "2007 BMW X6")],
    ),
    "oxford_flowers": (
        "oxford_flowers/split_zhou_OxfordFlowers.json",
        "jpg",
        "image_{}{:04d}.jpg",
        [("0", "pink primrose"), ("1", "hard-leaved pocket orchid"), ("2", "canterbury bells"), ("3", "sweet pea")],
    ),
    "food101": (
        "food-101/split_zhou_Food101.json",
        "images",
        "{}/{}.jpg",
        [("apple_pie", "apple_pie"), ("baklava", "baklava"), ("ramen", "ramen"), ("tacos", "tacos")],
    ),
    "sun397": (
        "sun397/split_zhou_SUN397.json",
        "SUN397",
        "{}/sun_a{}.jpg",
        [("a/abbey", "abbey"), ("a/apse/indoor", "indoor apse"), ("b/bar", "bar"), ("c/church/in", "in church")],
    ),
    "dtd": (
        "dtd/split_zhou_DescribableTextures.json",
        "images",
        "{0}/{0}_{1:04d}.jpg",
        [("banded", "banded"), ("blotchy", "blotchy"), ("braided", "braided"), ("zigzagged", "zigzagged")],
    ),
    "eurosat": (
        "eurosat/split_zhou_EuroSAT.json",
        "2750",
        "{0}/{0}_{1}.jpg",
        [("AnnualCrop", "Annual Crop Land"), ("Forest", "Forest"), ("River", "River"), ("SeaLake", "Sea or Lake")],
    ),
    "ucf101": (
        "ucf101/split_zhou_UCF101.json",
        "UCF-101-midframes",
        "{0}/v_{0}_g08_c{1:02d}.jpg",
        [("Apply_Eye_Makeup", "Apply_Eye_Makeup"), ("Archery", "Archery"), ("Biking", "Biking"), ("Yo_Yo", "Yo_Yo")],
    ),
}
BIRDS = ("tench", "shark", "ray", "hen", "finch", "jay", "owl", "kite")
WNIDS = {f"n{1440764 + 7 * number:08d}": name for number, name in enumerate(BIRDS)}
AIRCRAFT = ["707-320", "A300B4", "ATR-42", "An-12", "F-16A/B"]
TISSUES = ["ADI", "BACK", "DEB", "LYM", "MUC", "MUS", "NORM", "STR", "TUM"]
VARIANTS = {
    "imagenetv2": ("imagenetv2/imagenetv2-matched-frequency-format-val", range(8)),
    "imagenet_sketch": ("imagenet-sketch/images", range(8)),
    "imagenet_a": ("imagenet-adversarial/imagenet-a", (1, 3, 4, 6, 7)),
    "imagenet_r": ("imagenet-rendition/imagenet-r", (0, 2, 3, 5, 6)),
}


@cache
def image(suffix: str = ".png") -> bytes:
    """A file of a few pixels."""
    held = io.BytesIO()
    Image.fromarray(np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)).save(
        held, format={".png": "PNG", ".tif": "TIFF"}.get(suffix.lower(), "JPEG")
    )
    return held.getvalue()


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image(path.suffix))
    return path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def split_file(root: Path, key: str) -> Path:
    """The tree of a dataset with a split file; returns the file."""
    file, images, pattern, classes = SPLIT_FILES[key]
    folder = (root / file).parent
    rows: dict[str, list] = {"train": [], "val": [], "test": []}
    for label, (own, name) in enumerate(classes):
        kinds = ["train"] * TRAIN + ["val"] * VAL + ["test"] * TEST
        for number, kind in enumerate(kinds):
            path = pattern.format(own, number)
            rows[kind].append([path, label, name])
            put(folder / images / path)
    for needed in ("cars_train", "cars_test") if key == "stanford_cars" else ():
        (folder / needed).mkdir(exist_ok=True)
    write(root / file, json.dumps(rows, indent=4, separators=(",", ": ")))
    return root / file


def imagenet(root: Path) -> Path:
    folder = root / "imagenet"
    write(folder / "classnames.txt", "".join(f"{wnid} {name}\n" for wnid, name in WNIDS.items()))
    for wnid in WNIDS:
        for number in range(TRAIN):
            put(folder / "images" / "train" / wnid / f"{wnid}_{number}.JPEG")
        for number in range(TEST):
            put(folder / "images" / "val" / wnid / f"ILSVRC2012_val_{number}.JPEG")
    return folder


def variant(root: Path, key: str) -> Path:
    place, labels = VARIANTS[key]
    folder = root / Path(place).parts[0]
    write(folder / "classnames.txt", "".join(f"{wnid} {name}\n" for wnid, name in WNIDS.items()))
    for label in labels:
        own = str(label) if key == "imagenetv2" else list(WNIDS)[label]
        for number in range(TEST):
            put(root / place / own / f"{number}.JPEG")
    write(root / place / "README.txt", "not a class")
    return folder


def aircraft(root: Path) -> Path:
    folder = root / "fgvc_aircraft"
    write(folder / "variants.txt", "".join(f"{name}\n" for name in AIRCRAFT))
    number = 34309
    for kind, each in (("train", TRAIN), ("val", VAL), ("test", TEST)):
        lines = []
        for name in AIRCRAFT:
            for _ in range(each):
                lines.append(f"{number:07d} {name}\n")
                put(folder / "images" / f"{number:07d}.jpg")
                number += 1
        write(folder / f"images_variant_{kind}.txt", "".join(lines))
    return folder


def named(root: Path, folder: str, train: str, test: str, names: list[str], suffix: str) -> Path:
    for inside, each in ((train, TRAIN), (test, TEST)):
        for name in names:
            for number in range(each):
                put(root / folder / inside / name / f"{name}-{number}{suffix}")
    return root / folder


def make(root: Path, key: str) -> Path:
    """The tree of any dataset of the catalogue; returns its folder."""
    if key in SPLIT_FILES:
        return split_file(root, key).parent
    if key in VARIANTS:
        return variant(root, key)
    if key == "kather":
        return named(root, "kather", "NCT-CRC-HE-100K", "CRC-VAL-HE-7K", TISSUES, ".tif")
    if key in ("pannuke", "digestpath"):
        return named(root, key, "patches/train", "patches/test", ["benign", "malignant"], ".png")
    return imagenet(root) if key == "imagenet" else aircraft(root)
