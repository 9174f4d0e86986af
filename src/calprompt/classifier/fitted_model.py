"""What a fit leaves in memory: the model, and what prompts that did not learn from an image say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calprompt.calibrators import Calibrator, StoredLogits
from calprompt.classifier.checks import Check
from calprompt.classifier.choosing import Choice
from calprompt.inspection.inspect import Finding
from calprompt.predictor import Predictor
from calprompt.promises import DecisionRule, Promise, TrackRecord, Unseen
from calprompt.promises.track_record import HELD_OUT
from calprompt.runs.config import RunConfig
from calprompt.runs.preparation import create_tuner, run_backbone
from calprompt.runs.resources import Resources

PROMISED, UNUSED, GUARD = -1, -2, -3  # in place of a fold, of images that are held out
EXTRA = -4  # in place of a fold, of images that were added and are learned from only


@dataclass(frozen=True, eq=False)
class Predicted:
    """Images predicted by prompts that did not learn from them.

    Attributes:
        names: Of the images.
        digests: sha256 of each.
        labels: True classes.
        logits: [n, C].
        zero_shot_logits: [n, C] of the untuned model.
        fold: Which fold each was in; -1: held out for promises; -2: held out and not used; -3: held out for classes
            that must not be missed; -4: added, and learned from only.
    """

    names: list[str]
    digests: list[str]
    labels: NDArray[np.int64]
    logits: NDArray[np.float32]
    zero_shot_logits: NDArray[np.float32]
    fold: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: NDArray[np.bool_]) -> Predicted:
        """Some of the images."""
        kept = np.flatnonzero(rows).tolist()
        return Predicted(
            [self.names[i] for i in kept],
            [self.digests[i] for i in kept],
            self.labels[rows],
            self.logits[rows],
            self.zero_shot_logits[rows],
            self.fold[rows],
        )


def joined(parts: Sequence[Predicted]) -> Predicted:
    """The images of several parts, one after another."""
    return Predicted(
        [name for part in parts for name in part.names],
        [digest for part in parts for digest in part.digests],
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.logits for part in parts]),
        np.concatenate([part.zero_shot_logits for part in parts]),
        np.concatenate([part.fold for part in parts]),
    )


@torch.no_grad()
def calibrated(
    calibrator: Calibrator | None, part: Predicted, text: dict[str, Tensor], scale: float
) -> NDArray[np.float64]:
    """Calibrated probabilities [n, C]."""
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


@dataclass(frozen=True, eq=False)
class FittedModel:
    """All that a fitted classifier is.

    Attributes:
        config: Settings of its runs.
        labels: What the user calls each class.
        class_names: What the model reads for each.
        template: The sentence of the untuned model.
        prompts: What was learned.
        text: Text features [C, D] that stand for all images, tuned and untuned.
        backbone: Name, fingerprint and preprocessing.
        calibrator: Fitted; None: the model's own confidences.
        calibrator_spec: Its name.
        rule: From logits and probabilities to answers.
        promises: What is promised, refused or withdrawn.
        checks: What was measured on images that it did not learn from, the one to quote first.
        counts: Images of each class: tuned on, promised on.
        totals: Images of each class in all.
        folds: Of the cross-fitting.
        predicted: All images, predicted by prompts that did not learn from them.
        notes: What else the user should know.
        unseen: What the images held out for promises do not speak for.
        data: Name of the data.
        skipped: Images left out, and why.
        seconds: How long it took.
        logit_scale: What cosines are multiplied by.
        requests: Settings of the classifier that its runs do not have, such as the promises asked for.
        findings: What may be wrong with the images.
        choice: What the learner was compared with; None if there was nothing to choose.
    """

    config: RunConfig
    labels: tuple[Any, ...]
    class_names: tuple[str, ...]
    template: str
    prompts: dict[str, Tensor]
    text: dict[str, Tensor]
    backbone: dict[str, Any]
    calibrator: Calibrator | None
    calibrator_spec: str
    rule: DecisionRule
    promises: tuple[Promise, ...]
    checks: tuple[Check, ...]
    counts: tuple[tuple[int, int], ...]
    totals: tuple[int, ...]
    folds: int
    predicted: Predicted
    notes: tuple[str, ...] = ()
    unseen: Unseen = field(default_factory=Unseen)
    data: str = ""
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    logit_scale: float = 100.0
    requests: dict[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    choice: Choice | None = None

    def predictor(self, resources: Resources) -> Predictor:
        """The predictor on the classes it was fitted on."""
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
        """Calibrated probabilities [n, C] of images whose logits are stored."""
        return calibrated(self.calibrator, part, self.text, self.logit_scale)

    @property
    def checked(self) -> Predicted:
        """The images of the first check: those held out for promises, or, if they are few, the cross-fitted ones."""
        held = self.checks[0].source == HELD_OUT
        return self.predicted.take(self.predicted.fold == PROMISED if held else self.predicted.fold >= 0)

    @property
    def track_record(self) -> TrackRecord | None:
        """How often answers of a confidence were right on these images; None if there are none."""
        part, open_set = self.checked, self.rule.open_set
        taken = None if open_set is None or not len(part) else open_set.accepts(part.logits)
        return TrackRecord.of(self.checks[0].source, self.probabilities(part), part.labels, taken)

    def parameters(self) -> dict[str, Any]:
        """Those of a classifier that would be fitted like this one."""
        config, training = self.config, self.config.training
        renamed = dict(zip(self.labels, self.class_names, strict=True)) if self.labels != self.class_names else None
        return {
            **self.requests,
            "costs": tuple(self.requests.get("costs", ())),
            "class_names": renamed,
            "backbone": config.backbone,
            "tuner": config.tuner if self.choice is None else self.choice.tuner,
            "loss": config.loss,
            "calibrator": self.requests.get("calibrator", self.calibrator_spec),
            "options": dict(config.options if self.choice is None else self.choice.options) or None,
            "epochs": training.epochs if self.choice is None else None,
            "batch_size": training.batch_size,
            "lr": training.lr if self.choice is None else None,
            "seed": training.seed,
            "views": config.views,
            "crop": config.crop,
            "template": config.template,
            "chunk": config.chunk,
            "device": config.device,
            "dtype": config.dtype,
            "backbone_config": config.backbone_config,
            "imports": config.imports,
            "ignore_exif": not config.exif,
        }
