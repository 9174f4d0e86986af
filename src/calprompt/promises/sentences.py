"""What a division means for the user, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from calprompt.promises.requests import SETS_PER_CLASS, Requests, Unseen
from calprompt.text import plural, shorten

if TYPE_CHECKING:
    from calprompt.promises.division import Division


def plan_sentences(division: Division) -> list[str]:
    """What will be done with the images, before anything is learned."""
    tuned, promised, unused = len(division.tune), len(division.promise), len(division.unused)
    counts = [0] * len(division.counts)
    for label, (own, held) in enumerate(division.counts):
        counts[label] = own + held
    each = f"{counts[0]} each" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} each"
    lines = [
        f"{plural(tuned + promised, 'image')} of {plural(len(counts), 'class')} ({each}): {tuned} tune the prompts "
        f"and, by {division.n_folds}-fold cross-fitting, calibrate; {promised or 'none'} "
        f"{'is' if promised == 1 else 'are'} held out to check it and to make promises."
    ]
    if unused:
        lines.append(
            f"{plural(unused, 'more image')} {'is' if unused == 1 else 'are'} not used: further images of groups that "
            "are held out, or more of a class than its share."
        )
    lines += [f"It cannot be promised that {refusal.promise}: {refusal.detail}." for refusal in division.refusals]
    return [*lines, *(f"Note: {note}." for note in division.notes)]


def division_notes(class_names: Sequence[str], counts: Sequence[int], unseen: Unseen | None) -> tuple[str, ...]:
    """What else the user should know: classes with one image, without promises, or of very unequal sizes."""
    notes = []
    single = [name for name, count in zip(class_names, counts, strict=True) if count == 1]
    if single:
        notes.append(
            f"{plural(len(single), 'class')} with one image ({shorten(single)}): prompts learn from it, but nothing "
            "can be checked for images of it"
        )
    if unseen is not None and unseen.classes:
        notes.append(f"no image of {unseen.which} could be held out: that takes three images, or groups of them")
    largest, smallest = max(counts), min(counts)
    if largest >= 10 * smallest:
        notes.append(
            f"the classes are very unequal, {smallest} to {largest} images; promises hold for images in these "
            "proportions, so look at the classes one by one too"
        )
    return tuple(notes)


def classes_in_every_set(class_names: Sequence[str], requests: Requests, promised: Sequence[int]) -> list[str]:
    """A note on classes that have too few images for a promise of their own, where others have enough."""
    fewest = (requests.fewest(SETS_PER_CLASS) if requests.per_class else None) or 0
    short = [name for name, own in zip(class_names, promised, strict=True) if own < fewest]
    if not short or len(short) == len(class_names):
        return []
    few, are = ("it has", "is") if len(short) == 1 else ("they have", "are")
    return [f"{shorten(short)} {are} in every set per class, because {few} fewer than {fewest} held-out images"]
