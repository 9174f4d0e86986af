"""Where validation images come from: the dataset's own, a share of its training images, or its test images.

    own          those of the dataset; ImageNet and the sets of histology have none
    train:0.2    a fifth of the training images of each class, kept from training before shots are drawn
    test         the test images themselves, as in some public code: what is fitted has then seen what it is tested on

Of n training images of a class, share · n are kept, rounded, at least one, and never all: a class that has a single
image trains on it. The seed and the number of the class decide which. Images of one thing, which a dataset tells by the
names of its files, stay together: as many things as fit into the share are kept, or the smallest if none fits.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from calprompt.data.dataset import Dataset, Split
from calprompt.errors import SettingError

T = TypeVar("T")

OWN, TRAIN, TEST = "own", "train", "test"
EXPECTED = "own, test, or train:SHARE with a share above 0 and below 1, such as train:0.2"


def parse_validation(text: str) -> tuple[str, float | None]:
    """Where validation images come from, and the share of training images.

    >>> parse_validation("own"), parse_validation("train:0.20")
    (('own', None), ('train', 0.2))
    """
    kind, colon, rest = text.partition(":")
    if kind in (OWN, TEST) and not colon:
        return kind, None
    share = float(rest) if kind == TRAIN and re.fullmatch(r"0?\.\d+", rest) else 0.0
    if not 0 < share < 1:
        raise SettingError(f"must be {EXPECTED}; got {text!r}", parameter="validation")
    return kind, share


def normalized_validation(text: str) -> str:
    """The same in one spelling.

    >>> normalized_validation("train:.20")
    'train:0.2'
    """
    kind, share = parse_validation(text)
    return kind if share is None else f"{kind}:{share!r}"


def with_validation(dataset: Dataset, validation: str, seed: int) -> Dataset:
    """The dataset with validation images from where they are wanted."""
    kind, share = parse_validation(validation)
    if kind == TEST:
        return replace(dataset, val=dataset.test)
    if share is None:
        return dataset
    groups = image_groups(dataset.train, dataset.group_by)
    kept = keep_share(dataset.train.labels, share, seed, groups)
    rest = sorted(set(range(len(dataset.train))) - set(kept))
    return replace(dataset, train=dataset.train.take(rest), val=dataset.train.take(kept))


def image_groups(split: Split, group_by: str | None) -> list[str] | None:
    """What each image is of: what a pattern finds in its name, or the name; None without a pattern."""
    if group_by is None:
        return None
    names = [split.images.name(index) for index in range(len(split))]
    found = [re.search(group_by, name) for name in names]
    return [name if match is None else match[1] for name, match in zip(names, found, strict=True)]


def keep_share(labels: Sequence[int], share: float, seed: int, groups: Sequence[Hashable] | None = None) -> list[int]:
    """Indices of the images that are kept from training, in order.

    >>> keep_share([0, 0, 0, 0, 0, 1, 1, 2], share=0.4, seed=1)
    [3, 4, 6]
    """
    classes: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        classes.setdefault(label, []).append(index)
    if groups is not None:
        return _keep_groups(classes, share, seed, groups)
    kept: list[int] = []
    for label, own in classes.items():
        most = min(_wanted(len(own), share), len(own) - 1)
        kept += _shuffled(own, seed, label)[:most]
    return sorted(kept)


def _wanted(images: int, share: float) -> int:
    return max(1, round(share * images))


def _shuffled(values: list[T], seed: int, label: int) -> list[T]:
    """In an order of the seed and the class: other classes do not change it."""
    values = list(values)
    random.Random(f"{seed}/validation/{label}").shuffle(values)
    return values


def _keep_groups(classes: Mapping[int, list[int]], share: float, seed: int, groups: Sequence[Hashable]) -> list[int]:
    """The same with images that stay together, which may be of several classes."""
    members: dict[Hashable, list[int]] = {}
    sizes: dict[Hashable, Counter[int]] = {}
    for label, own in classes.items():
        for index in own:
            members.setdefault(groups[index], []).append(index)
            sizes.setdefault(groups[index], Counter())[label] += 1
    left, kept = {label: len(own) for label, own in classes.items()}, Counter[int]()
    taken: set[Hashable] = set()
    for label, own in classes.items():
        wanted = _wanted(len(own), share)
        inside = _shuffled(list(dict.fromkeys(groups[index] for index in own)), seed, label)
        fitting = [group for group in inside if sizes[group][label] <= wanted]
        for group in (*fitting, *sorted(inside, key=lambda each: sizes[each][label])):
            more = sizes[group]
            room = kept[label] + more[label] <= wanted or not kept[label]
            if group not in taken and room and all(left[other] > count for other, count in more.items()):
                taken.add(group)
                kept += more
                left = {other: count - more[other] for other, count in left.items()}
    return sorted(index for group in taken for index in members[group])
