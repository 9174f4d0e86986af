"""Which images a run sees: k shots of every class, base and novel classes, and where validation images come from.

    own          those of the dataset; ImageNet and the sets of histology have none
    train:0.2    a fifth of the training images of each class, kept from training before shots are drawn
    test         the test images themselves, as in some public code: what is fitted has then seen what it is tested on

Of n training images of a class, share · n are kept, rounded, at least one, and never all: a class that has a single
image trains on it. The seed and the number of the class decide which. Images of one thing, which a dataset tells by the
names of its files, stay together: as many things as fit into the share are kept, or the smallest if none fits.

The published protocol: shots are drawn on all classes before the cut, train first, then val with at most four, from one
stream seeded once; so a seed means the same images for every method, and base images do not depend on the cut.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from calprompt.data.dataset import Dataset, Split
from calprompt.errors import DataError, Parameter, SettingError

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
    """The group of each image: what a pattern finds in its name, or the name; None without a pattern."""
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
    """In an order that depends on the seed and the class only."""
    values = list(values)
    random.Random(f"{seed}/validation/{label}").shuffle(values)
    return values


def _keep_groups(classes: Mapping[int, list[int]], share: float, seed: int, groups: Sequence[Hashable]) -> list[int]:
    """The same with groups of images that stay together and may span classes."""
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


VAL_SHOTS = 4  # at most


@dataclass(frozen=True)
class Part:
    """Base or novel: its classes, relabelled from 0, and their images.

    Attributes:
        class_names: Its classes, in the order of the new labels.
        train: Images to train on.
        val: Images to validate on.
        test: Images to test on.
    """

    class_names: tuple[str, ...]
    train: Split
    val: Split
    test: Split


def draw(labels: Sequence[int], shots: int, rng: random.Random) -> list[int]:
    """Indices of `shots` images of every class (all, if it has fewer), classes in order of first appearance.

    Args:
        labels: Labels of the images.
        shots: Images per class.
        rng: Where the draws come from.

    >>> draw([5, 5, 2, 5], 1, random.Random(1))
    [0, 2]
    """
    members: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        members.setdefault(label, []).append(index)
    drawn = (rng.sample(own, shots) if len(own) >= shots else own for own in members.values())
    return [index for own in drawn for index in own]


def few_shot(
    dataset: Dataset, shots: int | None, seed: int, val_shots: int | None = None, validation: str = OWN
) -> Dataset:
    """The dataset with `shots` training images a class and some to validate on.

    Args:
        dataset: To draw from.
        shots: Training images per class; `None`: all.
        seed: Seed of the draw.
        val_shots: Validation images per class; `None`: as many as `shots`, but four at most, or all if `shots` is None
            or the test images validate.
        validation: Where validation images come from, see `calprompt.data.splits`.
    """
    if shots is not None and shots < 1:
        raise DataError(f"shots is a number of training images a class, at least 1; got {shots}")
    dataset = with_validation(dataset, validation, seed)
    if shots is None and val_shots is None:
        return dataset
    rng = random.Random(seed)
    train = dataset.train if shots is None else dataset.train.take(draw(dataset.train.labels, shots, rng))
    if val_shots is None and parse_validation(validation)[0] == TEST:
        return replace(dataset, train=train)
    validate = val_shots if val_shots is not None else min(shots or VAL_SHOTS, VAL_SHOTS)
    val = dataset.val.take(draw(dataset.val.labels, validate, rng))
    return replace(dataset, train=train, val=val)


def all_classes(dataset: Dataset) -> Part:
    """Every class as one part, to train and to test on."""
    if len(dataset.class_names) < 2:
        raise DataError(f"{dataset.name} has one class; there must be two or more to tell apart")
    return _part(dataset, range(len(dataset.class_names)))


def base_novel(dataset: Dataset) -> tuple[Part, Part]:
    """The dataset's base classes, or the first half of the labels, rounded up, and the rest.

    Both need two classes and something to test on.
    """
    count = len(dataset.class_names)
    base = sorted(dataset.base) if dataset.base is not None else list(range(-(-count // 2)))
    novel = sorted(set(range(count)) - set(base))
    if min(len(base), len(novel)) < 2:
        advice = (
            ("; or tune on all classes with ", Parameter("protocol", "few-shot", command="train")) if count > 1 else ()
        )
        have = f"{dataset.name} has {count} {'class' if count == 1 else 'classes'}"
        if dataset.base is not None:
            raise DataError(f"{have}, {len(base)} of them base by its list; base and novel need two each", *advice)
        raise DataError(f"{have}; base and novel need two each, so there must be four or more", *advice)
    parts = _part(dataset, base), _part(dataset, novel)
    for name, part in zip(("base", "novel"), parts, strict=True):
        if not len(part.test):
            raise DataError(f"{dataset.name} has no test images of the {name} classes ({part.class_names[0]}, …)")
    return parts


def _part(dataset: Dataset, labels: Sequence[int]) -> Part:
    renumbered = {label: new for new, label in enumerate(labels)}

    def cut(split: Split) -> Split:
        kept = split.take([index for index, label in enumerate(split.labels) if label in renumbered])
        return Split(kept.images, tuple(renumbered[label] for label in kept.labels))

    names = tuple(dataset.class_names[label] for label in labels)
    return Part(names, cut(dataset.train), cut(dataset.val), cut(dataset.test))
