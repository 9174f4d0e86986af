"""A dataset as a record: class names, a template, and labelled images to train, validate and test on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calprompt.class_names import normalized_name
from calprompt.data.images import Images
from calprompt.data.listing import SPLITS, About
from calprompt.errors import DataError
from calprompt.text import is_utf8, visible


@dataclass(frozen=True)
class Split:
    """Labelled images.

    Attributes:
        images: The images.
        labels: One per image.
    """

    images: Images
    labels: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise DataError(f"{len(self.images)} images have {len(self.labels)} labels; expected one each")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Sequence[int]) -> Split:
        """These images only, in this order."""
        return Split(self.images.take(indices), tuple(self.labels[i] for i in indices))


@dataclass(frozen=True)
class Dataset(About):
    """Class names, and labelled images to train, validate and test on; checked when it is made.

    Labels are indices into `class_names`. Every class has a training image, and there is something to test on.

    Attributes:
        name: What it is called.
        class_names: In the order of the labels.
        train: Images to train on.
        val: Images to fit calibrators on; may be empty.
        test: Images to test on.
        template: The sentence that suits these images, with {} for the class name; `None`: the usual one.
        templates: The sentences of the published tables, of which `template` is the first; `None`: there is no other.
        base: Labels of the base classes, all others being novel; `None`: the first half, rounded up.
        test_only: Made to test what was tuned on another dataset: there are no training images.
        repeated_names: Two classes may share a name, as two pairs of ImageNet's do.
        group_by: A regular expression that finds in the name of an image what it is of; `None`: each is of its own.
    """

    train: Split
    val: Split
    test: Split

    def __post_init__(self) -> None:
        names = self.class_names
        for name in (self.name, *names):
            if not is_utf8(name):
                what = "name of the data" if name == self.name else "class name"
                raise DataError(f"the {what} {visible(name)} is not UTF-8; rename it")
        alike: dict[str, list[str]] = {}
        for name in names:
            alike.setdefault(normalized_name(name), []).append(name)
        repeated = [" and ".join(map(repr, same)) for same in alike.values() if len(same) > 1]
        if repeated and not self.repeated_names:
            raise DataError(
                f"{self.name}: class names must differ, and the model reads these alike: {', '.join(repeated)}. "
                "Rename all but one (a classes file can), or put their images together"
            )
        for kind in SPLITS:
            outside = sorted({label for label in getattr(self, kind).labels if not 0 <= label < len(names)})
            if outside:
                raise DataError(
                    f"{self.name}: {kind} label {outside[0]} is out of range; {len(names)} class names allow "
                    f"0 to {len(names) - 1}"
                )
        trained = set(self.train.labels)
        untrained = [name for label, name in enumerate(names) if label not in trained]
        if untrained and not self.test_only:
            raise DataError(
                f"{self.name}: no training image of {', '.join(untrained[:5])}{', …' if len(untrained) > 5 else ''}; "
                "every class needs at least one"
            )
        if not len(self.test):
            raise DataError(f"{self.name}: there are no test images")

    @property
    def splits(self) -> dict[str, Split]:
        """Train, val and test by name."""
        return {kind: getattr(self, kind) for kind in SPLITS}
