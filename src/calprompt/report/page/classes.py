"""Class by class: is a class found, and is it right when it is said? And which classes are taken for which."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calprompt.metrics.binomial import share_interval
from calprompt.report.page.document import COUNT, PERCENT, Column, Number, Row, Table
from calprompt.report.page.subjects import Subject

MOST_CONFUSED = 15  # pairs of classes of a split


def class_table(chosen: Sequence[Subject]) -> Table | None:
    """A row per class of every subject and split.

    Args:
        chosen: Runs to look at.
    """
    rows = []
    for subject in chosen:
        names, _ = subject.stored.names
        for split, result in subject.results.items():
            sample = result.sample
            assert sample is not None
            for label, name in enumerate(names[split]):
                true, said = sample.labels == label, sample.predicted == label
                hits = int((true & said).sum())
                cells = (
                    *(subject.dataset, split, subject.method.name, name),
                    Number(int(true.sum())),
                    _share(hits, int(true.sum())),
                    Number(int(said.sum())),
                    Number(float(sample.confidence[said].mean())) if said.any() else Number(None),
                    _share(hits, int(said.sum())),
                    _gap(float(sample.confidence[said].mean()), hits, int(said.sum())) if said.any() else Number(None),
                )
                rows.append(Row(cells, (subject.place,)))
    if not rows:
        return None
    columns = (
        *(
            Column("dataset", "dataset"),
            Column("split", "classes"),
            Column("method", "method"),
            Column("class", "class"),
        ),
        Column("images", "images", COUNT, "test images of the class"),
        Column("found", "found", PERCENT, "share of its images that were classified as it (recall), percent"),
        Column("said", "times said", COUNT, "how often it was predicted"),
        Column("confidence", "says", PERCENT, "mean confidence when it is predicted, percent"),
        Column("right", "is right", PERCENT, "share of these predictions that is right (precision), percent"),
        Column("gap", "gap", PERCENT, "what it says minus how often it is right; above 0: over-confident", signed=True),
    )
    caption = (
        "One run of each dataset. When it says a class, how sure is it, and how often is it right? Below a share is "
        "Wilson's 95 % interval; the gap has the interval of the share that is right. A gap whose interval contains 0 "
        "may be chance."
    )
    return Table("classes", "Each class", caption, columns, tuple(rows), ("dataset", "split"))


def confusion_table(chosen: Sequence[Subject]) -> Table | None:
    """The classes that are most often taken for another.

    Args:
        chosen: Runs to look at.
    """
    rows = []
    for subject in chosen:
        names, _ = subject.stored.names
        for split, result in subject.results.items():
            sample = result.sample
            assert sample is not None
            wrong = np.flatnonzero(~sample.correct)
            pairs, first, counts = np.unique(
                np.stack([sample.labels[wrong], sample.predicted[wrong]], axis=1),
                axis=0,
                return_inverse=True,
                return_counts=True,
            )
            order = sorted(range(len(pairs)), key=lambda i: (-counts[i], *pairs[i]))[:MOST_CONFUSED]
            for i in order:
                true, said = (int(label) for label in pairs[i])
                images = int((sample.labels == true).sum())
                sure = float(sample.confidence[wrong[first.reshape(-1) == i]].mean())
                cells = (
                    *(subject.dataset, split, subject.method.name, names[split][true], names[split][said]),
                    Number(int(counts[i])),
                    Number(images),
                    _share(int(counts[i]), images),
                    Number(sure),
                )
                rows.append(Row(cells, (subject.place,)))
    if not rows:
        return None
    columns = (
        *(Column("dataset", "dataset"), Column("split", "classes"), Column("method", "method")),
        *(Column("true", "is"), Column("said", "was taken for")),
        Column("times", "times", COUNT, "how many images"),
        Column("images", "of images", COUNT, "test images of the class"),
        Column("share", "share", PERCENT, "of the images of the class, percent"),
        Column("confidence", "says", PERCENT, "mean confidence of these mistakes, percent"),
    )
    caption = (
        f"The {MOST_CONFUSED} most frequent mistakes of each split, in the same runs. Below a share is Wilson's 95 % "
        "interval."
    )
    return Table("confusions", "Classes most confused", caption, columns, tuple(rows), ("dataset", "split"))


def _share(count: int, total: int) -> Number:
    return Number(count / total, *share_interval(count, total)) if total else Number(None)


def _gap(confidence: float, hits: int, said: int) -> Number:
    low, high = share_interval(hits, said)
    return Number(confidence - hits / said, confidence - high, confidence - low)
