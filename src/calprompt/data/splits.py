"""Which images a run sees: k shots of every class, then the first half of the classes as base, the rest as novel.

The published protocol: shots are drawn on all classes before the cut, train first, then val with at most four, from one
stream seeded once; so a seed means the same images for every method, and base images do not depend on the cut.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from calprompt.data.dataset import Dataset, Split
from calprompt.data.validation import OWN, TEST, parse_validation, with_validation
from calprompt.errors import DataError, Parameter

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
        labels: Of the images.
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
        seed: Of the draw.
        val_shots: Validation images per class; `None`: as many as `shots`, but four at most, or all if `shots` is None
            or the test images validate.
        validation: Where validation images come from, see `calprompt.data.validation`.
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
