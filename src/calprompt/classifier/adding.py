"""A new version of a model: fitted on the old images and some that were labelled since, and compared with the old one.

    old images ── divided as before ──┬─ tune ───┐
                                      └─ held out │ ── promises, and which of the two is better
    added images ─────────────────────── tune ───┘

Added images only tune. People label what a model was unsure of or wrong about, so nothing can be promised from these,
and a comparison on them would flatter the new model. Those of a group that is held out are not used at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from calprompt.class_names import normalized_name
from calprompt.classifier.fitted_model import FittedModel, Predicted
from calprompt.data.dataset import Split
from calprompt.data.images import ImageFiles
from calprompt.data.labelled import LabelledImages
from calprompt.errors import DataError, Parameter
from calprompt.metrics.binomial import lower_bound, upper_bound
from calprompt.promises import Division, Unseen
from calprompt.text import plural, shorten, slug

DIGEST = re.compile("[0-9a-f]{64}")
TAIL_PROBABILITY = 0.025  # how often a model that is no better may be called better


def with_added(data: LabelledImages, added: LabelledImages) -> LabelledImages:
    """The images of both, the added ones last; classes that are new come last too."""
    first, second = data.train.images, added.train.images
    if not isinstance(first, ImageFiles) or not isinstance(second, ImageFiles):
        raise DataError("images can be added to image files only, and be image files only", parameter="added")
    labels, names, number_of = list(data.labels), list(data.class_names), []
    for label, name in zip(added.labels, added.class_names, strict=True):
        number = _place(label, data.labels)
        if number is None:
            number = len(labels)
            labels.append(label)
            names.append(name)
        number_of.append(number)
    paths = tuple(str((second.root / path).absolute()) for path in second.paths)  # the root has no say in these
    train = Split(
        replace(first, paths=first.paths + paths),
        (*data.train.labels, *(number_of[label] for label in added.train.labels)),
    )
    return replace(data, labels=tuple(labels), class_names=tuple(names), train=train)


def _place(label: Any, known: Sequence[Any]) -> int | None:
    """Which of the classes an added one is, by its name or by that of its folder; None if it is new."""
    exact = [number for number, other in enumerate(known) if str(other) == str(label)]
    alike = exact or [number for number, other in enumerate(known) if _key(other) == _key(label)]
    if len(alike) > 1:
        raise DataError(
            f"the added class {str(label)!r} may be any of {shorten(repr(str(known[number])) for number in alike)}; "
            "name its folder exactly as the class it is",
            parameter="added",
        )
    return alike[0] if alike else None


def _key(label: Any) -> str:
    """What a class has in common with the folder that is named after it."""
    return normalized_name(slug(str(label)) or str(label))


def names_in_data(data: LabelledImages, added: LabelledImages) -> dict[str, str]:
    """From the paths of added images in `with_added` to names like those of the others, for groups by name."""
    found, first = {}, len(data.train) - len(added.train)
    for row, label in enumerate(added.train.labels):
        name = PurePosixPath(added.train.images.name(row))
        if DIGEST.fullmatch(name.stem):
            raise DataError(
                f"{name} is named by its content, as 'calprompt serve --keep' names what it keeps, so its group cannot "
                "be found in its name; give these images the names they had, or fit without ",
                Parameter("group_by", "PATTERN"),
                parameter="added",
            )
        if name.parent.name == str(added.labels[label]):  # the folder of the class, which may be called otherwise there
            name = name.parent.with_name(str(data.labels[data.train.labels[first + row]])) / name.name
        found[data.train.images.name(first + row)] = str(name)
    return found


def extended(
    division: Division, labels: Sequence[int], class_names: Sequence[str], groups: Sequence[Any], first: int
) -> Division:
    """A division of the images before `first`, with those from there on, which tune."""
    held = {groups[index] for part in (division.promise, division.unused, division.guard) for index in part}
    tune, folds, unused = list(division.tune), list(division.folds), list(division.unused)
    turn = {groups[index]: fold for index, fold in zip(tune, folds, strict=True)}
    for index in range(first, len(labels)):
        if groups[index] in held:
            unused.append(index)
            continue
        folds.append(turn.setdefault(groups[index], len(turn) % max(1, division.n_folds)))
        tune.append(index)
    tuned, promised = (
        np.bincount([labels[index] for index in part], minlength=len(class_names)).tolist()
        for part in (tune, division.promise)
    )
    new = [name for number, name in enumerate(class_names) if number not in set(labels[:first])]
    unseen = division.unseen
    extra = len(tune) - len(division.tune)
    those = f"{plural(extra, 'added image')} {'is' if extra == 1 else 'are'} learned from only"
    notes = (*division.notes, f"{those}: nothing is calibrated, checked or promised on added images")
    if new:
        share = sum(class_names[label] in new for label in labels) / len(labels)
        part = first / len(labels)
        unseen = Unseen((*unseen.classes, *new), unseen.share * part + share, unseen.crowded * part)
        notes = (*notes, f"no image of {shorten(new)} is held out, which {'are' if len(new) > 1 else 'is'} new")
    smaller = division.smaller
    return replace(
        division,
        smaller=None if smaller is None else extended(smaller, labels, class_names, groups, first),
        tune=tuple(tune),
        folds=tuple(folds),
        unused=tuple(sorted(unused)),
        counts=tuple(zip(tuned, promised, strict=True)),
        notes=notes,
        n_groups=len(set(groups)),
        unseen=unseen,
    )


def comparison(new: FittedModel, old: FittedModel) -> list[str]:
    """Whether a model is better than the one before, in sentences; judged by images that neither learned from."""
    for kind, part in (("held-out", "held_out"), ("cross-fitted", "crossed")):
        mine, theirs = (_right(model, getattr(model.predicted, part)) for model in (new, old))
        shared = [digest for digest, (_, label) in mine.items() if digest in theirs and theirs[digest][1] == label]
        if shared:  # without images whose label was changed in between
            which = plural(len(shared), f"{kind} image")
            break
    else:
        return ["Whether it is better cannot be told: the models share no image that neither of them learned from."]
    now, before = (np.array([each[digest][0] for digest in shared]) for each in (mine, theirs))
    wins, losses = int((now & ~before).sum()), int((~now & before).sum())
    shares = [f"{100 * float(each.mean()):.1f} %" for each in (now, before)]
    lines = [
        f"Compared with the model before, on {which} that neither learned from: it is right on {shares[0]}, the model "
        f"before on {shares[1]}. Only the new one is right on {wins}, only the one before on {losses}."
    ]
    if lower_bound(wins, wins + losses, TAIL_PROBABILITY) > 0.5:
        return [*lines, "It is better: so many more would be right by chance in fewer than 1 of 40 cases."]
    if upper_bound(wins, wins + losses, TAIL_PROBABILITY) < 0.5:
        return [*lines, "It is worse: keep the model before, and look at the labels of the added images."]
    return [*lines, "Which of the two is better cannot be told from so few images: try it beside the one before."]


def _right(model: FittedModel, part: Predicted) -> dict[str, tuple[bool, str]]:
    """By digest, whether the most probable class is the true one, and which that is."""
    if not len(part):
        return {}
    right = model.probabilities(part).argmax(axis=1) == part.labels
    labels = [str(model.labels[label]) for label in part.labels]
    return dict(zip(part.digests, zip(right.tolist(), labels, strict=True), strict=True))
