"""How good a classifier is, from images it did not learn from, beside what is no merit of its own.

majority    always answering the class that is most frequent among these images; and the class that was when it was
            fitted, if that is another one
zero-shot   the untuned model

And fitted classifiers as contenders of a comparison.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from calprompt import metrics
from calprompt.data.checks import find_unreadable
from calprompt.data.dataset import Split
from calprompt.data.labelled import LabelledImages, labelled_images
from calprompt.errors import DataError, SettingError
from calprompt.metrics.binomial import chance_ece, share_interval
from calprompt.predictor import PredictionBatch, zero_shot_logits
from calprompt.progress import Progress, silent
from calprompt.promises.promise import Evidence
from calprompt.promises.requests import MADE, SETS, SETS_PER_CLASS, Promise, percent
from calprompt.promises.rule import ANSWER, DECISIONS, UNSURE, DecisionRule
from calprompt.promises.track_record import DESCRIPTIONS
from calprompt.records import Record
from calprompt.results.compare import Answers, Contender
from calprompt.runs.resources import Resources
from calprompt.text import bullets, plural, shorten

if TYPE_CHECKING:
    from calprompt.classifier.estimator import Classifier

BANDS = (0.0, 0.5, 0.7, 0.9, 1.0)
FEWEST_TO_JUDGE = 5  # images of a class below which its accuracy says nothing
SPLIT = "all"  # of contenders
STORED = "images that all models stored predictions of"


@dataclass(frozen=True)
class Band(Record):
    """Answers of about the same confidence."""

    low: float  # confidences above this one,
    high: float  # up to this one
    images: int  # how many there are
    confidence: float  # their mean confidence
    accuracy: float  # how many of them were right
    interval: tuple[float, float]  # 95 % interval of the accuracy


@dataclass(frozen=True)
class Check(Record):
    """What was measured on some images.

    Attributes:
        source: The images: "held out", "cross-fitted", or the name of other data.
        images: Number of images.
        accuracy: Share of right predictions.
        interval: 95 % interval of the accuracy.
        majority: Accuracy of always answering the class that is most frequent among these images.
        majority_class: The most frequent class.
        zero_shot: Accuracy of the untuned model; None if it is not known.
        metrics: All metrics with the calibrator.
        chance_ece: The ECE that a perfectly calibrated model with these confidences would show on so many images.
        uncalibrated: All metrics without it.
        per_class: For each class, images and right predictions.
        confusion: Counts of true class (row) by answered class (column).
        bands: How often answers were right, by band of confidence.
        outcomes: Counts of answers and whether promises held; empty if the promises were made on these very images.
        fitted_majority: Accuracy of always answering the class that was most frequent when the model was fitted; None
            if that is the same class.
        fitted_majority_class: The most frequent class when the model was fitted.
    """

    source: str
    images: int
    accuracy: float
    interval: tuple[float, float]
    majority: float
    majority_class: str
    zero_shot: float | None
    metrics: dict[str, Any]
    chance_ece: float
    uncalibrated: dict[str, Any]
    per_class: dict[str, tuple[int, int]]
    confusion: list[list[int]]
    bands: list[Band]
    outcomes: dict[str, Any] = field(default_factory=dict)
    fitted_majority: float | None = None
    fitted_majority_class: str | None = None

    @property
    def most_confused(self) -> list[tuple[str, str, int]]:
        """True class, predicted class and how often, the most frequent first."""
        names = list(self.per_class)
        pairs = [
            (names[row], names[column], count)
            for row, counts in enumerate(self.confusion)
            for column, count in enumerate(counts)
            if row != column and count
        ]
        return sorted(pairs, key=lambda pair: -pair[2])

    @property
    def balanced(self) -> float:
        """The mean accuracy of the classes that have images."""
        shares = [right / n for n, right in self.per_class.values() if n]
        return sum(shares) / len(shares)

    @property
    def weak_classes(self) -> list[str]:
        """Classes of which fewer than half were right, where enough images tell."""
        return [name for name, (n, right) in self.per_class.items() if n >= FEWEST_TO_JUDGE and right < n / 2]

    def verdict(self, backbone: str) -> list[str]:
        """What to think of it, in sentences."""
        low, _ = self.interval
        lines = []
        if self.majority == 1:
            lines.append(
                f"All of these images are of {self.majority_class!r}: they cannot show whether it tells classes apart."
            )
        elif self.accuracy <= self.majority:
            more = f", though it is right on {percent(round(self.balanced, 3))} of an average class"
            lines.append(
                f"Counted over all images it is of no use as it is: always answering {self.majority_class!r} would be "
                f"right on {percent(round(self.majority, 3))}{more if self.balanced > self.accuracy else ''}."
            )
        elif low <= self.majority:
            lines.append(
                f"It may be of no use: on so few images it cannot be told from always answering "
                f"{self.majority_class!r}, which would be right on {percent(round(self.majority, 3))}."
            )
        elif self.zero_shot is not None and self.accuracy < self.zero_shot:
            lines.append(
                f"Tuning did not help here: the untuned model is right on {percent(round(self.zero_shot, 3))}. More "
                "images, or another tuner, may."
            )
        if all(self.metrics[name] > self.uncalibrated[name] for name in ("ece", "nll")):
            lines.append("Calibration made the confidences worse on these images; more images to tune on would help.")
        if self.weak_classes:
            lines.append(f"It is wrong on most images of {shorten(self.weak_classes)}: look at these before using it.")
        if lines and backbone in ("pocket", "pocket-vit"):
            lines.append(
                f"{backbone} is a small model that knows drawings. For photographs use the backbone pocket-photo, "
                "which needs no download either, or a real CLIP, such as ViT-B-16-quickgelu/openai."
            )
        elif lines and backbone == "pocket-photo":
            lines.append(
                "pocket-photo is a small model to try things with. A real CLIP, such as the backbone "
                "ViT-B-16-quickgelu/openai, sees more."
            )
        return lines


def check(
    source: str,
    images: Evidence,
    class_names: Sequence[str],
    *,
    majority: int,
    zero_shot_logits: NDArray[Any] | None = None,
) -> Check:
    """Measure predictions of images that the model did not learn from."""
    labels, predicted = images.labels, images.probabilities.argmax(axis=1)
    n, right = len(labels), int(images.correct.sum())
    confusion = np.zeros((len(class_names), len(class_names)), dtype=np.int64)
    np.add.at(confusion, (labels, predicted), 1)
    per_class = {
        name: (int(row.sum()), int(row[label]))
        for label, (name, row) in enumerate(zip(class_names, confusion, strict=True))
    }
    counts = confusion.sum(axis=1)
    here = majority if counts[majority] == counts.max() else int(counts.argmax())
    untuned = None if zero_shot_logits is None else float((zero_shot_logits.argmax(axis=1) == labels).mean())
    return Check(
        source=source,
        images=n,
        accuracy=right / n,
        interval=share_interval(right, n),
        majority=float(counts[here] / n),
        majority_class=class_names[here],
        zero_shot=untuned,
        metrics=metrics.evaluate(images.probabilities, labels),
        chance_ece=chance_ece(images.confidence),
        uncalibrated=metrics.evaluate(images.logits, labels, from_logits=True),
        per_class=per_class,
        confusion=confusion.tolist(),
        bands=_bands(images.confidence, images.correct),
        fitted_majority=None if here == majority else float(counts[majority] / n),
        fitted_majority_class=None if here == majority else class_names[majority],
    )


def outcomes(
    rule: DecisionRule, promises: Sequence[Promise], images: Evidence, class_names: Sequence[str]
) -> dict[str, Any]:
    """What a rule does with labelled images that it was not made on."""
    made = {promise.kind: promise for promise in promises if promise.status == MADE}
    decisions = rule.decide(images.logits, images.probabilities)
    answered = np.array([decision == ANSWER for decision in decisions])
    chosen = rule.chosen(images.probabilities)
    kept = (chosen == images.labels) | np.array([decision == UNSURE for decision in decisions])
    guards = {
        class_names[guard.label]: {
            "images": int((images.labels == guard.label).sum()),
            "missed": int((~kept & (images.labels == guard.label)).sum()),
            "promised": guard.share if guard.promised and rule.withdrawn is None else None,
        }
        for guard in rule.guards
    }
    sets = {}
    for each in rule.sets:
        inside = each.sets(images.logits)
        promise = made.get(SETS_PER_CLASS if each.per_class else SETS)
        excluded = promise.excluded if promise is not None and not promise.whole else ()
        about = np.array([class_names[label] not in excluded for label in images.labels])
        covered = int(inside[np.arange(len(images)), images.labels][about].sum())
        name = f"{each.coverage}{' per class' if each.per_class else ''}"
        sets[name] = {
            "covered": covered,
            "images": int(about.sum()),
            "mean_size": float(inside.sum(axis=1).mean()),
            "promised": None if promise is None else each.coverage,
            "excluded": list(excluded),
        }
    return {
        **{decision: decisions.count(decision) for decision in DECISIONS},
        "wrong": int((answered & (chosen != images.labels)).sum()),
        "target_error": rule.target_error if rule.promised else None,
        "sets": sets,
        **({"never_miss": guards} if guards else {}),
        **({} if rule.costs is None else {"cost": _costs(rule, images, answered)}),
    }


def _costs(rule: DecisionRule, images: Evidence, answered: NDArray[np.bool_]) -> dict[str, float]:
    """What the answers cost per image, and what those of the most probable class would."""
    costs, rows = np.asarray(rule.costs), np.flatnonzero(answered)
    likely, chosen = images.probabilities.argmax(axis=1), rule.chosen(images.probabilities)
    return {
        "answers": float(costs[images.labels[rows], chosen[rows]].sum() / len(images)),
        "every_image": float(costs[images.labels, chosen].mean()),
        "most_probable": float(costs[images.labels, likely].mean()),
    }


def _bands(confidence: NDArray[np.float64], correct: NDArray[np.bool_]) -> list[Band]:
    found = []
    for low, high in pairwise(BANDS):
        inside = (confidence > low) & (confidence <= high)
        n = int(inside.sum())
        if n:
            right = int(correct[inside].sum())
            found.append(Band(low, high, n, float(confidence[inside].mean()), right / n, share_interval(right, n)))
    return found


def band_sentence(band: Band) -> str:
    """A band in words.

    >>> band_sentence(Band(0.9, 1.0, 40, 0.95, 0.925, (0.80, 0.97)))
    'Of 40 predictions above 90 % sure (95 % on average), 92 % were right (80 to 97 %)'
    """
    low, high = band.interval
    where = (
        f"above {percent(band.low)} sure" if band.high == 1 else f"{100 * band.low:.0f} to {percent(band.high)} sure"
    )
    return (
        f"Of {plural(band.images, 'prediction')} {where} ({100 * band.confidence:.0f} % on average), "
        f"{100 * band.accuracy:.0f} % were right ({100 * low:.0f} to {100 * high:.0f} %)"
    )


def evaluate_images(classifier: Classifier, data: LabelledImages, *, progress: Progress = silent) -> Check:
    _, evidence, batches = _predicted(classifier, data, progress)
    names, predictor, model = [str(label) for label in classifier.classes_], classifier.predictor_, classifier.model_
    zero_shot = None
    if not predictor.tuner.needs_pixels:  # otherwise these are not the features of the untuned model
        features = torch.cat([batch.features for batch in batches])
        zero_shot = zero_shot_logits(predictor.backbone, features, predictor.tuner.frozen_text).numpy()
    totals = {str(label): total for label, total in zip(model.labels, model.totals, strict=True)}
    known = [totals.get(name, 0) for name in names]
    majority = int(np.argmax(known if any(known) else np.bincount(evidence.labels, minlength=len(names))))
    source = f"the data called {data.name}" if data.name in DESCRIPTIONS else data.name
    found = check(source, evidence, names, majority=majority, zero_shot_logits=zero_shot)
    return replace(found, outcomes=outcomes(classifier.rule_, classifier.promises_, evidence, names))


def _predicted(
    classifier: Classifier, data: LabelledImages, progress: Progress
) -> tuple[Split, Evidence, list[PredictionBatch]]:
    """The images to measure on, and predictions of them; labels are numbers of the classifier's classes."""
    split = data.test if data.test is not None else data.train
    if classifier.skip_bad:
        bad = find_unreadable([split])
        split = split.take([index for index in range(len(split)) if split.images.name(index) not in bad])
        if bad:
            lines = bullets(dict(sorted(bad.items())))
            warnings.warn(f"left out, {plural(len(bad), 'image')} that cannot be read:{lines}", stacklevel=4)
    if not len(split):
        raise DataError(f"{data.name} has no images to measure on")
    place = {str(label): number for number, label in enumerate(classifier.classes_)}
    used = [str(data.labels[label]) for label in split.labels]
    strange = [name for name in dict.fromkeys(used) if name not in place]
    if strange:
        raise DataError(
            f"{data.name} has classes that the model does not know: {shorten(strange)}; it knows {shorten(place)}"
        )
    seen = set(classifier.model_.predicted.digests)
    again = sum(split.images.digest(index) in seen for index in range(len(split)))
    if again:
        raise DataError(
            f"{plural(again, 'image')} of {data.name} {'was' if again == 1 else 'were'} used to fit the model, so "
            "nothing could be learned from measuring on them; what it says of them is in images.csv of its folder"
        )
    batches = list(classifier.predictor_.stream(split.images, progress=progress))
    logits, probabilities = (
        np.concatenate([np.asarray(getattr(batch, name)) for batch in batches]) for name in ("logits", "probabilities")
    )
    return split, Evidence.of(logits, probabilities, [place[name] for name in used]), batches


def stored_contenders(folders: Sequence[str | Path]) -> list[Contender]:
    """Models with the predictions in their folders, each made by prompts that did not learn from the image."""
    from calprompt.classifier.model_folder import read_model

    found = []
    for name, folder in zip(model_names(folders), folders, strict=True):
        model = read_model(folder)
        part = model.predicted
        answers = Answers(model.probabilities(part), part.labels, part.digests, [str(label) for label in model.labels])
        found.append(Contender(name, STORED, 0, {SPLIT: answers}))
    return found


def measured_contenders(
    folders: Sequence[str | Path], data: Any, *, device: str | None = None, progress: Progress = silent
) -> list[Contender]:
    """Models with their answers to labelled images that none of them learned from."""
    from calprompt.classifier.estimator import Classifier

    found, resources = [], Resources()
    for name, folder in zip(model_names(folders), folders, strict=True):
        classifier = Classifier.load(folder, device=device, resources=resources)
        images = labelled_images(data, upright=not classifier.ignore_exif)
        split, evidence, _ = _predicted(classifier, images, progress)
        digests = [split.images.digest(index) for index in range(len(split))]
        classes = [str(label) for label in classifier.classes_]
        answers = Answers(evidence.probabilities, evidence.labels, digests, classes)
        found.append(Contender(name, images.name, 0, {SPLIT: answers}))
    return found


def model_names(folders: Sequence[str | Path]) -> list[str]:
    """Names of the folders, with as much of the path as tells them apart.

    >>> model_names(["models/a", "models/b/"]), model_names(["one/model", "two/model"])
    (['a', 'b'], ['one/model', 'two/model'])
    """
    parts = [Path(folder).expanduser().resolve().parts for folder in folders]
    if len(set(parts)) < len(parts):
        raise SettingError("a model stands twice in the comparison; give each of them once")
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            break
    return names
