"""Images that cannot be used, found before training starts and told of all at once; or left out, if that is wanted.

    glance    the first bytes only: missing, empty, no image; next to nothing, in the time of a run
    decode    everything: damaged, cut-off and far too large files too

A glance that finds something is followed by decoding all, so that the report is complete. What a glance does not see is
found when features are computed, before training as well, and reported the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from calprompt.data.dataset import Dataset, Split
from calprompt.data.decoding import BadImageError, decode, glance, read
from calprompt.data.images import ImageFiles
from calprompt.data.work import Progress, in_order, silent
from calprompt.errors import CalpromptError

SHOWN = 100

Bad = dict[str, str]  # from an image's name to what is wrong with it


def find_bad(
    splits: Iterable[Split], *, thorough: bool = True, fine: set[str] | None = None, progress: Progress = silent
) -> Bad:
    """What is wrong with image files of some splits; those in `fine` are not looked at, and good ones are put there."""
    found = list({image: None for split in splits for image in _files(split) if fine is None or image[1] not in fine})
    bad = _try(glance, found, progress, "looking at images") if not thorough else {}
    if thorough or bad:
        bad = _try(lambda path: decode(read(path)), found, progress, "decoding images")
    if fine is not None:
        fine |= {name for _, name in found if name not in bad}
    return bad


def bad_images_error(bad: Mapping[str, str], hint: str = "--skip-bad") -> CalpromptError:
    """The report on images that cannot be used."""
    count = "one image" if len(bad) == 1 else f"{len(bad)} images"
    lines = [f"{name} ({reason})" for name, reason in sorted(bad.items())]
    more = f"\n  … and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return CalpromptError(
        f"{count} cannot be read; replace or remove, or go on without with {hint}:\n  "
        + "\n  ".join(lines[:SHOWN])
        + more
    )


def without(dataset: Dataset, bad: Mapping[str, str]) -> Dataset:
    """The dataset without some images; it must still be one."""

    def left(split: Split) -> Split:
        return split.take([index for index in range(len(split)) if split.images.name(index) not in bad])

    train, val, test = (left(split) for split in dataset.splits.values())
    try:
        return replace(dataset, train=train, val=val, test=test)
    except CalpromptError as error:
        raise CalpromptError(f"without {len(bad)} images that cannot be read, {error}") from bad_images_error(bad)


def _files(split: Split) -> list[tuple[Path, str]]:
    images = split.images
    return [(images.root / name, name) for name in images.paths] if isinstance(images, ImageFiles) else []


def _try(work: Callable[[Path], object], found: list[tuple[Path, str]], progress: Progress, what: str) -> Bad:
    def reason(image: tuple[Path, str]) -> str | None:
        try:
            work(image[0])
        except BadImageError as error:
            return str(error)
        return None

    bad: Bad = {}
    for done, ((_, name), said) in enumerate(zip(found, in_order(reason, found), strict=True), start=1):
        if said is not None:
            bad[name] = said
        progress(what, done, len(found), "")
    return bad
