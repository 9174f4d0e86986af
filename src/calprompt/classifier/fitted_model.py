"""A fit in memory: the model, what prompts that did not learn from an image say of it, and what is fitted on
these predictions: the calibrator, and when an image is none of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calprompt.calibrators import Calibrator, Chain, DistanceAware, StoredLogits
from calprompt.classifier.checks import Check
from calprompt.classifier.choosing import Choice
from calprompt.classifier.settings import OF_RUNS
from calprompt.errors import SettingError
from calprompt.evaluation.settings import NONE, create_calibrator, normalized_spec
from calprompt.inspection.inspect import Finding
from calprompt.kernel import open_set_scores
from calprompt.metrics.binomial import share_interval
from calprompt.predictor import Predictor
from calprompt.promises import DecisionRule, ImageWatch, OpenSetRule, Promise, TrackRecord, Unseen
from calprompt.promises.conformal import class_rate_interval, rejection_threshold
from calprompt.promises.track_record import HELD_OUT
from calprompt.runs.config import RunConfig
from calprompt.runs.preparation import create_tuner, run_backbone
from calprompt.runs.resources import Resources

PROMISED, UNUSED, GUARD = -1, -2, -3  # in place of a fold, of images that are held out
ARRAYS = ("labels", "logits", "zero_shot_logits", "fold")  # of `Predicted`
EXTRA = -4  # in place of a fold, of images that were added and are learned from only
OPEN_SET_SCORE = "max_logit"
UNEVEN = 1.5  # times as large a share of one class tunes as of another: calibrate in the proportions of the folder


@dataclass(frozen=True, eq=False)
class Predicted:
    """Images predicted by prompts that did not learn from them."""

    names: list[str]
    digests: list[str]  # sha256 of each
    labels: NDArray[np.int64]  # true classes
    logits: NDArray[np.float32]  # [n, C]
    zero_shot_logits: NDArray[np.float32]  # [n, C] of the untuned model
    # which fold each was in; -1: held out for promises; -2: held out and not used; -3: held out for classes that must
    # not be missed; -4: added, and learned from only
    fold: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: NDArray[np.bool_]) -> Predicted:
        kept = np.flatnonzero(rows).tolist()
        names, digests = ([each[row] for row in kept] for each in (self.names, self.digests))
        return Predicted(
            names, digests, self.labels[rows], self.logits[rows], self.zero_shot_logits[rows], self.fold[rows]
        )

    @property
    def crossed(self) -> Predicted:
        """The images that were in a fold."""
        return self.take(self.fold >= 0)

    @property
    def held_out(self) -> Predicted:
        """The images that promises rest on."""
        return self.take(self.fold == PROMISED)


def joined(parts: Sequence[Predicted]) -> Predicted:
    names, digests = ([each for part in parts for each in getattr(part, name)] for name in ("names", "digests"))
    return Predicted(names, digests, *(np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS))


@torch.no_grad()
def calibrated(
    calibrator: Calibrator | None, part: Predicted, text: dict[str, Tensor], scale: float
) -> NDArray[np.float64]:
    logits = torch.from_numpy(np.asarray(part.logits)).double()
    if calibrator is not None and len(part):
        logits = calibrator(stored_logits(part, text, scale))
    return np.asarray(logits.softmax(dim=1).numpy())


def stored_logits(part: Predicted, text: dict[str, Tensor], scale: float, *, labelled: bool = False) -> StoredLogits:
    """What calibrators work on; with `labelled`, to be fitted."""
    return StoredLogits(
        torch.from_numpy(np.asarray(part.logits)),
        torch.from_numpy(part.labels) if labelled else None,
        text=text["text"],
        frozen_text=text["frozen_text"],
        base_text=text["text"],
        base_frozen_text=text["frozen_text"],
        zero_shot_logits=torch.from_numpy(np.asarray(part.zero_shot_logits)),
        logit_scale=scale,
    )


def fit_calibrator(
    spec: str, crossed: Predicted, text: dict[str, Tensor], scale: float
) -> tuple[Calibrator | None, str | None]:
    """The calibrator, fitted on cross-fitted predictions, or None and why there is none."""
    if spec == NONE:
        return None, "the confidences are the model's own; nothing says how often it is right when it is this sure"
    calibrator = create_calibrator(normalized_spec(spec))
    try:
        return calibrator.fit(stored_logits(crossed, text, scale, labelled=True)), None
    except SettingError as error:
        return None, f"{spec} could not be fitted, so the confidences are the model's own: {error}"


def in_proportion(crossed: Predicted, totals: Sequence[int]) -> NDArray[np.bool_]:
    """Which images keep the proportions of the folder's classes, where a limit on tuning has changed them."""
    counts = np.bincount(crossed.labels, minlength=len(totals))
    shares = counts / np.maximum(totals, 1)
    least = float(shares[counts > 0].min())
    if float(shares.max()) <= UNEVEN * least:
        return np.ones(len(crossed), dtype=bool)
    keep = np.zeros(len(crossed), dtype=bool)
    for label, total in enumerate(totals):
        own = np.flatnonzero(crossed.labels == label)
        own = own[np.argsort([crossed.digests[row] for row in own], kind="stable")]
        keep[own[: max(1, int(least * total + 0.5))]] = True
    return keep


def fold_by_fold(spec: str, crossed: Predicted, text: dict[str, Tensor], scale: float) -> NDArray[np.float64]:
    """Probabilities of each fold under a calibrator that was fitted on the other folds."""
    found = np.empty(crossed.logits.shape)
    for fold in np.unique(crossed.fold):
        rows = crossed.fold == fold
        others = crossed.take(~rows)
        calibrator = fit_calibrator(spec, others, text, scale)[0] if len(others) else None
        found[rows] = calibrated(calibrator, crossed.take(rows), text, scale)
    return found


def temperature_of(calibrator: Calibrator | None) -> float:
    """What the calibrator divides logits by, if it is that kind; else 1."""
    found = getattr(calibrator, "temperature", None)
    return float(found) if found else 1.0


def fit_open_set(rejects: float, crossed: Predicted, held: Predicted) -> OpenSetRule | None:
    """The threshold for none of these, and how often it errs; None if there are too few images for one."""
    scores = open_set_scores(crossed.logits, OPEN_SET_SCORE)
    threshold = rejection_threshold(scores, rejects)
    if not np.isfinite(threshold):
        return None
    rule = OpenSetRule(OPEN_SET_SCORE, 1.0, threshold, (0.0, 0.0, 1.0), None)
    if len(held):
        return measured_open_set(rule, ~rule.accepts(held.logits), joined([crossed, held]))
    below = np.zeros(len(crossed), dtype=bool)
    for fold in np.unique(crossed.fold):  # against the threshold of the others
        rows = crossed.fold == fold
        below[rows] = scores[rows] < rejection_threshold(scores[~rows], rejects)
    return measured_open_set(rule, below, crossed)


def measured_open_set(rule: OpenSetRule, below: NDArray[np.bool_], predicted: Predicted) -> OpenSetRule:
    """The rule with how often it errs: which images of its classes it rejects, and images from which to leave out."""
    rejected, rates = int(below.sum()), left_out_rates(predicted, rule.threshold)
    return replace(
        rule,
        false_rejects=(rejected / len(below), *share_interval(rejected, len(below))),
        false_accepts=class_rate_interval(rates),
        images=len(below),
        classes=len(rates),
    )


def left_out_rates(predicted: Predicted, threshold: float) -> list[float]:
    """Share of the images of each class that is accepted when the class is taken off the list."""
    rates = []
    for label in range(predicted.logits.shape[1]):
        own = predicted.logits[predicted.labels == label]
        if len(own) and predicted.logits.shape[1] > 2:
            others = np.delete(own, label, axis=1)
            rates.append(float((open_set_scores(others, OPEN_SET_SCORE) >= threshold).mean()))
    return rates


def adjusted(calibrator: Calibrator | None, adjust: str | None) -> Calibrator | None:
    """The calibrator for classes that were added: the fitted one, and after it DAC if that is wanted."""
    if adjust is None:
        return calibrator
    if adjust != "dac":
        raise SettingError(f"must be 'dac' or None, got {adjust!r}", parameter="adjust")
    if calibrator is None:
        return DistanceAware()
    return Chain([*(calibrator.steps if isinstance(calibrator, Chain) else [calibrator]), DistanceAware()])


@dataclass(frozen=True, eq=False)
class FittedModel:
    """All that a fitted classifier is."""

    config: RunConfig  # settings of its runs
    labels: tuple[Any, ...]  # what the user calls each class
    class_names: tuple[str, ...]  # what the model reads for each
    template: str  # the sentence of the untuned model
    prompts: dict[str, Tensor]  # what was learned
    text: dict[str, Tensor]  # text features [C, D] that stand for all images, tuned and untuned
    backbone: dict[str, Any]  # name, fingerprint and preprocessing
    calibrator: Calibrator | None  # fitted; None: the model's own confidences
    calibrator_spec: str  # its name
    rule: DecisionRule  # from logits and probabilities to answers
    promises: tuple[Promise, ...]  # what is promised, refused or withdrawn
    checks: tuple[Check, ...]  # what was measured on images that it did not learn from, the one to quote first
    counts: tuple[tuple[int, int], ...]  # images of each class: tuned on, promised on
    totals: tuple[int, ...]  # images of each class in all
    folds: int
    predicted: Predicted  # all images, predicted by prompts that did not learn from them
    notes: tuple[str, ...] = ()  # what else the user should know
    unseen: Unseen = field(default_factory=Unseen)  # what the images held out for promises do not speak for
    data: str = ""  # name of the data
    skipped: dict[str, str] = field(default_factory=dict)  # images left out, and why
    seconds: float = 0.0  # how long it took
    logit_scale: float = 100.0  # what cosines are multiplied by
    # settings of the classifier that its runs do not have, such as the promises asked for
    requests: dict[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()  # what may be wrong with the images
    choice: Choice | None = None  # what the learner was compared with; None if there was nothing to choose

    def predictor(self, resources: Resources) -> Predictor:
        backbone = run_backbone(self.config, resources)
        with backbone.limited_threads():
            tuner = create_tuner(self.config, backbone, self.class_names, self.template)
        tuner.load_state_dict(self.prompts)
        return Predictor(
            tuner,
            calibrator=self.calibrator,
            text=self.text["text"],
            base_text=self.text["text"],
            base_frozen_text=self.text["frozen_text"],
            upright=self.config.exif,
        )

    def probabilities(self, part: Predicted) -> NDArray[np.float64]:
        return calibrated(self.calibrator, part, self.text, self.logit_scale)

    @property
    def checked(self) -> Predicted:
        """The images of the first check: those held out for promises, or, if they are few, the cross-fitted ones."""
        return self.predicted.held_out if self.checks[0].source == HELD_OUT else self.predicted.crossed

    @property
    def track_record(self) -> TrackRecord | None:
        """How often answers of a confidence were right on these images; None if there are none."""
        part, open_set = self.checked, self.rule.open_set
        taken = None if open_set is None or not len(part) else open_set.accepts(part.logits)
        return TrackRecord.of(self.checks[0].source, self.probabilities(part), part.labels, taken)

    def image_watch(self, *, false_alarms: float = 0.01) -> ImageWatch | None:
        held, crossed = self.predicted.held_out.logits, self.predicted.crossed.logits
        if not len(held) or not len(crossed):
            return None
        temperature, known = temperature_of(self.calibrator), self.predicted.digests
        return ImageWatch.of(held, crossed, temperature, known=known, false_alarms=false_alarms)

    def parameters(self) -> dict[str, Any]:
        """Those of a classifier that would be fitted like this one."""
        config, training = self.config, self.config.training
        renamed = dict(zip(self.labels, self.class_names, strict=True)) if self.labels != self.class_names else None
        chosen = self.choice  # by cross-fitting, which would choose again
        return {
            **self.requests,
            "costs": tuple(self.requests.get("costs", ())),
            "class_names": renamed,
            "backbone": config.backbone,
            "tuner": config.tuner if chosen is None else chosen.tuner,
            "calibrator": self.requests.get("calibrator", self.calibrator_spec),
            "options": dict(config.options if chosen is None else chosen.options) or None,
            "epochs": training.epochs if chosen is None else None,
            "batch_size": training.batch_size,
            "lr": training.lr if chosen is None else None,
            "seed": training.seed,
            "chunk": config.chunk,
            "imports": config.imports,
            "ignore_exif": not config.exif,
            **{name: getattr(config, name) for name in OF_RUNS},
        }
