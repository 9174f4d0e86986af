"""Labelled images from whatever a user has: a folder, a table, a dataset, or a list of images and one of labels.

labelled_images("photos/")                     class folders: all images
labelled_images("pocket_photos")               data with splits: train and val to learn from, test to test on
labelled_images(paths, y=["cat", "dog", …])    paths, bytes, PIL images or arrays, and their labels
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calprompt.class_names import check_class_names
from calprompt.data.dataset import About, Dataset, Listing, Split
from calprompt.data.decoding import iterate_images
from calprompt.data.images import FeatureRows, GivenImages, ImageFiles, ImageRows, Images
from calprompt.data.load import list_dataset, load_dataset
from calprompt.errors import DataError, SettingError
from calprompt.text import shorten

ClassNames = Mapping[Any, str] | Sequence[str]


@dataclass(frozen=True, eq=False)
class LabelledImages(About):
    """Images with their classes.

    Attributes:
        labels: What the user calls each class, such as the name of a folder or a number; in order.
        train: Images to learn from.
        test: Images that the data keep for testing; None if they say nothing of it.
    """

    labels: tuple[Any, ...]
    train: Split
    test: Split | None = None

    @property
    def splits(self) -> dict[str, Split]:
        """The images by split."""
        return {"train": self.train} | ({} if self.test is None else {"test": self.test})


def labelled_images(
    X: Any,
    y: Any = None,
    *,
    class_names: ClassNames | None = None,
    root: str | Path | None = None,
    classes: str | Path | None = None,
    upright: bool = False,
) -> LabelledImages:
    """Labelled images from data on disk, or from images and labels.

    Args:
        X: A folder of class folders, a table, a split file, the name of a dataset, or a `Dataset`; or, with `y`,
            images: paths, bytes, PIL images or arrays.
        y: A label for each image of X; None if X has labels itself.
        class_names: What the model reads for labels that are not words: from label to name, or in the order of the
            sorted labels.
        root: Folder that has the datasets, or the images of a table.
        classes: File with the order and names of the classes.
        upright: Turn images as their EXIF data say.

    Raises:
        DataError: if there is nothing to learn from.
        SettingError: if X and y do not go together.
    """
    if y is not None:
        return _from_lists(X, y, class_names, upright)
    if isinstance(X, Dataset):
        return _named(_from_dataset(X), class_names)
    if not isinstance(X, str | Path):
        raise SettingError(
            f"y is missing: X is {type(X).__name__}, which has no labels; give a label for each image, "
            "or the path of a folder with one subfolder per class"
        )
    if Path(X).suffix.lower() in (".safetensors", ".json"):
        return _named(_from_dataset(load_dataset(X, root=root, classes=classes, upright=upright)), class_names)
    return _named(_from_listing(list_dataset(X, root=root, classes=classes, split=False), upright), class_names)


def _from_listing(listing: Listing, upright: bool) -> LabelledImages:
    train, test = listing.split("train", "val", upright=upright), listing.split("test", upright=upright)
    if not listing.repeated_names:
        check_class_names(listing.class_names)
    labels = _distinct(listing.class_names)
    return LabelledImages(labels=labels, train=train, test=test if len(test) else None, **listing.about)


def _from_dataset(dataset: Dataset) -> LabelledImages:
    train, val = dataset.train, dataset.val
    learned = Split(_joined(train.images, val.images), train.labels + val.labels)
    return LabelledImages(labels=_distinct(dataset.class_names), train=learned, test=dataset.test, **dataset.about)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Labels for classes of which two may share a name, as two pairs of ImageNet's do.

    >>> _distinct(["crane", "cardigan", "crane"])
    ('crane', 'cardigan', 'crane (2)')
    """
    found: list[str] = []
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        found.append(f"{name} ({seen[name]})" if seen[name] > 1 else name)
    return tuple(found)


def _joined(first: Images, second: Images) -> Images:
    if not len(second):
        return first
    if isinstance(first, ImageFiles) and isinstance(second, ImageFiles) and first.root == second.root:
        return replace(first, paths=first.paths + second.paths)
    if isinstance(first, ImageRows | FeatureRows) and isinstance(second, type(first)):
        import torch

        return type(first)(torch.cat([first.rows, second.rows]))
    raise DataError("the images to train and to validate on are of different kinds; put them into one folder or file")


def _from_lists(X: Any, y: Any, class_names: ClassNames | None, upright: bool) -> LabelledImages:
    if isinstance(X, str | Path | bytes):
        raise SettingError("X is one image or one folder, and y has labels; give a list of images with y, or y=None")
    items = tuple(iterate_images(X)[0])
    values = list(y.tolist() if hasattr(y, "tolist") else y)
    if len(items) != len(values):
        raise SettingError(f"X has {len(items)} images and y has {len(values)} labels; expected one label per image")
    if not items:
        raise DataError("there are no images")
    labels, numbers = _encoded(values)
    images: Images
    if all(isinstance(item, str | Path) for item in items):
        images = ImageFiles(Path(), tuple(str(Path(item).expanduser()) for item in items), upright=upright)
    else:
        images = GivenImages(items, upright=upright)
    data = LabelledImages("images", _names(labels, class_names), labels, Split(images, numbers))
    check_class_names(data.class_names)
    return data


def _encoded(values: list[Any]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The sorted labels, and the number of each image's."""
    values[:] = [value.item() if isinstance(value, np.generic) else value for value in values]
    for value in values:
        if value is None or (isinstance(value, float) and not np.isfinite(value)):
            raise SettingError(
                f"must have a label for every image, got {value!r}; leave out images without one", parameter="y"
            )
        if not isinstance(value, str | int | float):
            raise SettingError(
                f"must have labels that are text or numbers, got {value!r} of {type(value).__name__}", parameter="y"
            )
    kinds = {isinstance(value, str) for value in values}
    if len(kinds) > 1:
        raise SettingError("must have labels of one kind, text or numbers; got both", parameter="y")
    labels = sorted(set(values))
    place = {label: number for number, label in enumerate(labels)}
    return tuple(labels), tuple(place[value] for value in values)


def _names(labels: Sequence[Any], class_names: ClassNames | None) -> tuple[str, ...]:
    """The class name of each label."""
    if class_names is None:
        if all(isinstance(label, str) for label in labels):
            return tuple(labels)
        raise SettingError(
            f"the labels are {shorten(labels)}; the model learns from names, so say what they mean with "
            "class_names={0: 'cat', 1: 'dog'}"
        )
    if isinstance(class_names, Mapping):
        missing = [label for label in labels if label not in class_names]
        if missing:
            raise SettingError(f"class_names has no name for the label {missing[0]!r}")
        return tuple(str(class_names[label]) for label in labels)
    if isinstance(class_names, str) or len(class_names) != len(labels):
        raise SettingError(
            f"must have a name for each of the {len(labels)} labels, in sorted order; got {class_names!r}",
            parameter="class_names",
        )
    return tuple(map(str, class_names))


def _named(data: LabelledImages, class_names: ClassNames | None) -> LabelledImages:
    if not len(data.train) and data.test is None:
        raise DataError(f"{data.name} has no images")
    if class_names is None:
        return data
    return replace(data, class_names=check_class_names(_names(data.labels, class_names)))
