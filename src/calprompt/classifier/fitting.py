"""Fitting a classifier: divide the images, cross-fit, tune, calibrate, promise.

    images ── divide ──┬─ tune ──┬─ fold 1 … K: a run without the fold ── logits of the fold ─┐
                       │         │                                                            ├─ calibrator
                       │         └─ a run on all of them ── the prompts                       ├─ temperature of sets
                       │                                       │                              └─ none of these
                       └─ held out ────────────────────────── logits ── promises, check

Every training is a run in a folder of its own, so that a fit that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calprompt import tuners
from calprompt.cache import cache_folder
from calprompt.calibrators import Calibrator, StoredLogits
from calprompt.classifier.checks import Check, check, share_interval
from calprompt.classifier.settings import FitSettings
from calprompt.data import ImageFiles, LabelledImages, Part, Split, find_unreadable, image_digests
from calprompt.errors import CalpromptError, DataError, SettingError
from calprompt.evaluation.settings import NONE, create_calibrator, normalized_spec
from calprompt.files import canonical_json, locked
from calprompt.predictor import Predictor
from calprompt.progress import Progress, silent
from calprompt.promises import Division, Evidence, OpenSetRule, Promise, Requests, divide, make_promises
from calprompt.promises.groups import join_groups
from calprompt.promises.open_set import class_rate_interval, open_set_scores, rejection_threshold
from calprompt.promises.rule import DecisionRule
from calprompt.promises.sentences import plan_sentences
from calprompt.runs import Resources, Run, RunPlan, run
from calprompt.runs.config import RunConfig
from calprompt.runs.folder import LOGITS, PROMPTS, read_run_tensors
from calprompt.runs.planning import TEMPLATE, data_digest
from calprompt.runs.preparation import create_tuner, run_backbone
from calprompt.text import bullets, plural, shorten, slug

OPEN_SET_SCORE = "max_logit"
FITS = "fits"
PROMISED, UNUSED = -1, -2  # in place of a fold, of images that are held out
UNEVEN = 1.5  # times as large a share of one class tunes as of another: calibrate in the proportions of the folder
REQUESTS = (
    *("target_error", "coverage", "per_class", "level", "none_of_these", "shots", "held_out", "folds", "group_by"),
    *("classes", "root", "skip_bad"),
)


@dataclass(frozen=True, eq=False)
class Predicted:
    """Images predicted by prompts that did not learn from them.

    Attributes:
        names: Of the images.
        digests: sha256 of each.
        labels: True classes.
        logits: [n, C].
        zero_shot_logits: [n, C] of the untuned model.
        fold: Which fold each was in; -1: held out for promises; -2: held out and not used.
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
        data: Name of the data.
        skipped: Images left out, and why.
        seconds: How long it took.
        logit_scale: What cosines are multiplied by.
        requests: Settings of the classifier that its runs do not have, such as the promises asked for.
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
    data: str = ""
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    logit_scale: float = 100.0
    requests: dict[str, Any] = field(default_factory=dict)

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


def fit_model(
    settings: FitSettings,
    data: LabelledImages,
    *,
    resources: Resources,
    groups: Sequence[Any] | None = None,
    progress: Progress = silent,
    announce: Callable[[Sequence[str]], None] | None = None,
) -> FittedModel:
    """Fit a classifier.

    Args:
        settings: Of the classifier.
        data: The images.
        resources: What is loaded already; its store keeps the features between the runs.
        groups: Images of one group are not divided.
        progress: Shows how far it is.
        announce: Is told what will be done with the images, before anything is learned.

    Raises:
        CalpromptError: for whatever is wrong with the settings or the images.
    """
    requests = settings.checked_requests()
    if settings.calibrator != NONE:
        create_calibrator(normalized_spec(settings.calibrator))  # raises for one that does not exist
    config = settings.run_config(data.name, len(data.labels))
    _warn_of_names(data.class_names)
    if groups is not None and len(groups) != len(data.train):
        raise SettingError(f"groups must have one entry per image, got {len(groups)} for {len(data.train)} images")
    data, groups, skipped = _readable(data, groups, settings.skip_bad, resources, progress)
    digests = [str(row[2]) for row in image_digests({"images": data.train}, progress)["images"]]
    names = [data.train.images.name(index) for index in range(len(data.train))]
    division = divide(
        data.train.labels,
        [str(label) for label in data.labels],
        requests,
        folds=settings.folds,
        most_tuned=settings.shots,
        held_out=settings.held_out,
        groups=join_groups(digests, settings.groups_of(names), groups),
        seed=settings.seed,
    )
    if announce is not None:
        announce([*plan_sentences(division), *_other_images(data, skipped, settings.group_by, division)])
    place = Path(settings.work_dir).expanduser() if settings.work_dir else cache_folder(FITS)
    work = place / f"{slug(data.name)}-{fit_digest(settings, config, data, digests, division)[:12]}"
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CalpromptError(
            f"cannot write to {work}: {error.strerror or error}; choose another place with work_dir=FOLDER"
        ) from error
    with locked(work):
        fit = _Fit(settings, data, config, division, digests, resources, work, progress)
        predicted, final = fit.run_all()
        model = _finish(settings, requests, data, config, division, predicted, final, skipped)
    shutil.rmtree(work, ignore_errors=True)
    return model


def fit_digest(
    settings: FitSettings, config: RunConfig, data: LabelledImages, digests: Sequence[str], division: Division
) -> str:
    """sha256 of all that a fit depends on, so that only the same fit goes on where it was stopped."""
    payload = {
        "config": {name: value for name, value in config.record().items() if name not in ("data", "root", "classes")},
        "requests": {name: getattr(settings, name) for name in REQUESTS if name not in ("root", "classes")},
        "calibrator": settings.calibrator,
        "classes": data.class_names,
        "images": list(zip(data.train.labels, digests, strict=True)),
        "division": [division.tune, division.folds, division.promise],
    }
    return hashlib.sha256(canonical_json(payload)).hexdigest()


@dataclass(eq=False)
class _Fit:
    """The runs of a fit."""

    settings: FitSettings
    data: LabelledImages
    config: RunConfig
    division: Division
    digests: list[str]
    resources: Resources
    work: Path
    progress: Progress

    def run_all(self) -> tuple[Predicted, Run]:
        """Images predicted by prompts that did not learn from them, and the run on all images that tune."""
        tune, folds = np.array(self.division.tune), np.array(self.division.folds)
        total = self.division.n_folds + 1
        parts = []
        for fold in range(self.division.n_folds):
            inside = tune[folds == fold]
            made = self.run(tune[folds != fold], inside, f"fold {fold + 1} of {total - 1}")
            parts.append(self.predicted(made, inside, np.full(len(inside), fold)))
        held = np.array([*self.division.promise, *self.division.unused], dtype=np.int64)
        final = self.run(tune, held if len(held) else tune, "all images")
        if len(held):
            use = np.repeat([PROMISED, UNUSED], [len(self.division.promise), len(self.division.unused)])
            parts.append(self.predicted(final, held, use))
        return _joined(parts), final

    def run(self, train: NDArray[np.int64], test: NDArray[np.int64], which: str) -> Run:
        """One training, found finished if it was done before."""

        def report(what: str, done: int, total: int, note: str = "") -> None:
            self.progress(f"{what} ({which})" if what == "training" else what, done, total, note)

        empty = self.data.train.take([])
        part = Part(
            self.data.class_names, self.data.train.take(train.tolist()), empty, self.data.train.take(test.tolist())
        )
        kind = tuners.get(self.config.tuner)
        plan = RunPlan(
            self.config,
            self.resources.identity(self.config.backbone, config=self.config.backbone_config, dtype=self.config.dtype),
            part,
            None,
            template=self.config.template or self.data.template_of(kind.template_table) or TEMPLATE,
            dataset=self.data.name,
            data_digest=data_digest(part, None, {}),
        )
        return run(plan, self.work, resources=self.resources, progress=report)

    def predicted(self, made: Run, rows: NDArray[np.int64], fold: NDArray[np.int64]) -> Predicted:
        """What a run says of images it was not tuned on."""
        tensors, metadata = read_run_tensors(made.folder, LOGITS, made.record)
        return Predicted(
            metadata["image_names"]["all"],
            [self.digests[row] for row in rows],
            tensors["all/labels"].numpy(),
            tensors["all/logits"].numpy(),
            tensors["all/zero_shot_logits"].numpy(),
            fold,
        )


def _joined(parts: Sequence[Predicted]) -> Predicted:
    return Predicted(
        [name for part in parts for name in part.names],
        [digest for part in parts for digest in part.digests],
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.logits for part in parts]),
        np.concatenate([part.zero_shot_logits for part in parts]),
        np.concatenate([part.fold for part in parts]),
    )


def _readable(
    data: LabelledImages, groups: Sequence[Any] | None, skip_bad: bool, resources: Resources, progress: Progress
) -> tuple[LabelledImages, Sequence[Any] | None, dict[str, str]]:
    """The data with images that can be read, each opened once."""
    images = data.train.images
    if isinstance(images, ImageFiles):
        data = replace(data, train=Split(replace(images, memory=resources.memory), data.train.labels))
    if not len(data.train):
        raise DataError(f"{data.name} has no images to learn from")
    if not skip_bad:
        return data, groups, {}
    skipped = find_unreadable([data.train], progress=progress)
    kept = [index for index in range(len(data.train)) if data.train.images.name(index) not in skipped]
    if not kept:
        raise DataError(f"no image of {data.name} can be read")
    groups = None if groups is None else [list(groups)[index] for index in kept]
    return replace(data, train=data.train.take(kept)), groups, skipped


def _other_images(
    data: LabelledImages, skipped: Mapping[str, str], group_by: str | None, division: Division
) -> list[str]:
    """What becomes of images that are not divided, and how many groups there are."""
    lines = []
    if data.test is not None:
        lines.append(
            f"The {plural(len(data.test), 'image')} that {data.name} keeps for testing play no part; 'calprompt "
            "evaluate' takes them."
        )
    if skipped:
        names = [f"{name} ({reason})" for name, reason in skipped.items()]
        lines.append(f"Left out, because they cannot be read:{bullets(names)}")
    if group_by is not None:
        lines.append(
            f"The images are in {plural(division.n_groups, 'group')}, by what {group_by!r} finds in their names."
        )
    return lines


def _warn_of_names(class_names: Sequence[str]) -> None:
    """Warn of class names that say nothing to a model that learns from names."""
    strange = [name for name in class_names if not any(letter.isalpha() for letter in name)]
    if strange:
        warnings.warn(
            f"the class names {shorten(map(repr, strange))} are no words, and the model learns from names; rename the "
            "folders, or give names with classes=FILE",
            stacklevel=4,
        )


def _finish(
    settings: FitSettings,
    requests: Requests,
    data: LabelledImages,
    config: RunConfig,
    division: Division,
    predicted: Predicted,
    final: Run,
    skipped: dict[str, str],
) -> FittedModel:
    """Everything after the last training."""
    tensors, metadata = read_run_tensors(final.folder, LOGITS, final.record)
    prompts, prompt_record = read_run_tensors(final.folder, PROMPTS, final.record)
    text = {kind: tensors[f"all/{kind}"] for kind in ("text", "frozen_text")}
    scale = float(metadata["logit_scale"])
    crossed, held = predicted.take(predicted.fold >= 0), predicted.take(predicted.fold == PROMISED)
    totals = tuple(data.train.labels.count(label) for label in range(len(data.labels)))
    crossed = in_proportion(crossed, totals)
    calibrator, note = fit_calibrator(settings.calibrator, crossed, text, scale)
    notes = [*division.notes, *([note] if note else [])]
    pilot, promised = (
        Evidence.of(part.logits, calibrated(calibrator, part, text, scale), part.labels) for part in (crossed, held)
    )
    open_set = fit_open_set(settings.none_of_these, crossed, held) if settings.none_of_these else None
    rule, promises = make_promises(
        requests,
        pilot,
        promised,
        open_set=open_set,
        temperature=temperature_of(calibrator),
        refusals=division.refusals,
        total=len(data.train),
    )
    names = [str(label) for label in data.labels]
    largest = int(np.argmax(totals))
    checks = []
    if len(held):
        checks.append(check("held out", promised, names, majority=largest, zero_shot_logits=held.zero_shot_logits))
    alone = Evidence.of(crossed.logits, fold_by_fold(settings.calibrator, crossed, text, scale), crossed.labels)
    checks.append(check("cross-fitted", alone, names, majority=largest, zero_shot_logits=crossed.zero_shot_logits))
    return FittedModel(
        config=config,
        labels=data.labels,
        class_names=data.class_names,
        template=prompt_record["template"],
        prompts=prompts,
        text=text,
        backbone=dict(final.record["backbone"]),
        calibrator=calibrator,
        calibrator_spec=NONE if calibrator is None else settings.calibrator,
        rule=rule,
        promises=promises,
        checks=tuple(checks),
        counts=division.counts,
        totals=totals,
        folds=division.n_folds,
        predicted=predicted,
        notes=tuple(notes),
        data=data.name,
        skipped=skipped,
        logit_scale=scale,
        requests={name: getattr(settings, name) for name in REQUESTS},
    )


def fit_calibrator(
    spec: str, crossed: Predicted, text: dict[str, Tensor], scale: float
) -> tuple[Calibrator | None, str | None]:
    """The calibrator, fitted on cross-fitted predictions, or None and why there is none."""
    if spec == NONE:
        return None, "the confidences are the model's own; nothing says how often it is right when it is this sure"
    calibrator = create_calibrator(normalized_spec(spec))
    try:
        return calibrator.fit(_record(crossed, text, scale, labelled=True)), None
    except SettingError as error:
        return None, f"{spec} could not be fitted, so the confidences are the model's own: {error}"


def in_proportion(crossed: Predicted, totals: Sequence[int]) -> Predicted:
    """As many images of each class as keeps the proportions of the folder, where a limit on tuning has changed them."""
    counts = np.bincount(crossed.labels, minlength=len(totals))
    shares = counts / np.maximum(totals, 1)
    least = float(shares[counts > 0].min())
    if float(shares.max()) <= UNEVEN * least:
        return crossed
    keep = np.zeros(len(crossed), dtype=bool)
    for label, total in enumerate(totals):
        own = np.flatnonzero(crossed.labels == label)
        own = own[np.argsort([crossed.digests[row] for row in own], kind="stable")]
        keep[own[: max(1, int(least * total + 0.5))]] = True
    return crossed.take(keep)


def fold_by_fold(spec: str, crossed: Predicted, text: dict[str, Tensor], scale: float) -> NDArray[np.float64]:
    """Probabilities of each fold under a calibrator that was fitted on the other folds."""
    found = np.empty(crossed.logits.shape)
    for fold in np.unique(crossed.fold):
        rows = crossed.fold == fold
        others = crossed.take(~rows)
        calibrator = fit_calibrator(spec, others, text, scale)[0] if len(others) else None
        found[rows] = calibrated(calibrator, crossed.take(rows), text, scale)
    return found


@torch.no_grad()
def calibrated(
    calibrator: Calibrator | None, part: Predicted, text: dict[str, Tensor], scale: float
) -> NDArray[np.float64]:
    """Calibrated probabilities [n, C]."""
    logits = torch.from_numpy(np.asarray(part.logits)).double()
    if calibrator is not None and len(part):
        logits = calibrator(_record(part, text, scale))
    return np.asarray(logits.softmax(dim=1).numpy())


def _record(part: Predicted, text: dict[str, Tensor], scale: float, *, labelled: bool = False) -> StoredLogits:
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
    if len(held):
        below = open_set_scores(held.logits, OPEN_SET_SCORE) < threshold
    else:  # each fold against the threshold of the others
        below = np.zeros(len(crossed), dtype=bool)
        for fold in np.unique(crossed.fold):
            rows = crossed.fold == fold
            below[rows] = scores[rows] < rejection_threshold(scores[~rows], rejects)
    rejected = int(below.sum())
    low, high = share_interval(rejected, len(below))
    both = _joined([crossed, held]) if len(held) else crossed
    rates = left_out_rates(both, threshold)
    return OpenSetRule(
        OPEN_SET_SCORE,
        1.0,
        threshold,
        (rejected / len(below), low, high),
        class_rate_interval(rates) if len(rates) > 1 else None,
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
