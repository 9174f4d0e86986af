"""Fitting a classifier: divide the images, cross-fit, choose the learner, tune, calibrate, promise.

    images ── divide ──┬─ tune ──┬─ fold 1 … K: a run without the fold ── logits of the fold ─┬─ choice of the learner
                       │         │                                                            ├─ calibrator
                       │         └─ a run on all of them ── what is learned                   ├─ temperature of sets
                       │                                       │                              └─ none of these
                       └─ held out ────────────────────────── logits ── promises, check

Every training is a run in a folder of its own, so that a fit that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from calprompt import tuners
from calprompt.cache import FITS, cache_folder
from calprompt.classifier.adding import extended, names_in_data, with_added
from calprompt.classifier.calibration import (
    calibrated,
    fit_calibrator,
    fit_open_set,
    fold_by_fold,
    in_proportion,
    temperature_of,
)
from calprompt.classifier.checks import check
from calprompt.classifier.choosing import Candidate, Choice, Contender, Crossed, between, candidates_of, rank
from calprompt.classifier.fitted_model import EXTRA, GUARD, PROMISED, UNUSED, FittedModel, Predicted, joined
from calprompt.classifier.settings import DEFAULT_BACKBONE, FitSettings, cost_matrix, seconds_of
from calprompt.data.dataset import Split
from calprompt.data.images import ImageFiles
from calprompt.data.labelled import LabelledImages
from calprompt.data.splits import Part
from calprompt.data.unreadable import UnreadableImages, find_unreadable, image_digests, two_labels
from calprompt.errors import CalpromptError, CalpromptWarning, DataError, NotFoundError, Parameter, SettingError
from calprompt.evaluation.settings import NONE, create_calibrator, normalized_spec
from calprompt.files import canonical_json, locked, read_json, write_json
from calprompt.inspection.inspect import Finding, apply_fixes, feature_findings, in_order
from calprompt.pocket import FOR_PHOTOGRAPHS
from calprompt.progress import Progress, silent
from calprompt.promises import (
    DecisionRule,
    Division,
    Evidence,
    Refusal,
    Requests,
    divide,
    doubtful_promise,
    make_promises,
)
from calprompt.promises.division import join_groups, plan_sentences
from calprompt.registry import load_extension
from calprompt.runs.config import RunConfig
from calprompt.runs.execute import run
from calprompt.runs.folder import LOGITS, PROMPTS, Run, read_run_tensors
from calprompt.runs.planning import TEMPLATE, RunPlan, data_digest
from calprompt.runs.preparation import run_backbone
from calprompt.runs.resources import Resources
from calprompt.text import bullets, plural, shorten, slug

CLOCK = "clock.json"
CHECKPOINT_SECONDS = 5.0  # of training that an interruption may cost: most runs of a fit take less in all
LEAST_HELD_OUT = 30  # held-out images from which on these come first when it is said how good a model is
QUICK = 2e8  # images times classes times dimensions up to which labels are checked, within seconds
REQUESTS = (
    *("target_error", "coverage", "per_class", "level", "coverage_level", "none_of_these", "shots", "held_out"),
    *("folds", "group_by", "classes", "root", "skip_bad", "costs", "never_miss", "budget", "fixes", "calibrator"),
)


def fit_model(
    settings: FitSettings,
    data: LabelledImages,
    *,
    resources: Resources,
    groups: Sequence[Any] | None = None,
    added: LabelledImages | None = None,
    progress: Progress = silent,
    announce: Callable[[Sequence[str]], None] | None = None,
) -> FittedModel:
    """Fit a classifier; images that are added tune, and nothing is promised on them."""
    requests = settings.checked_requests()
    cost_matrix(settings.costs, [str(label) for label in data.labels])  # raises for what makes no sense
    if settings.fixes is not None:
        data = apply_fixes(data, settings.fixes)
    own, own_labels = len(data.train), len(data.labels)
    if added is not None:
        data = with_added(data, added)
    called = {} if added is None or settings.group_by is None else names_in_data(data, added)
    settings, chosen = _with_backbone(settings, resources)
    if settings.calibrator != NONE:
        create_calibrator(normalized_spec(settings.calibrator))  # raises for one that does not exist
    for path in settings.imports:
        load_extension(path)
    candidates = candidates_of(settings.tuner, settings.options)
    configs = [settings.run_config(data.name, len(data.labels), each.tuner, each.options) for each in candidates]
    budget = seconds_of(settings.budget)
    _warn_of_names(data.class_names)
    if groups is not None and len(groups) != own:
        raise SettingError(f"must have one entry per image, got {len(groups)} for {own} images", parameter="groups")
    if groups is not None:
        groups = [(True, group) for group in groups] + [(False, row) for row in range(len(data.train) - own)]
    before = [data.train.images.name(index) for index in range(own)]
    data, groups, skipped = _readable(data, groups, settings.skip_bad, resources, progress)
    rows = image_digests({"images": data.train}, progress)
    _warn_of_labels(two_labels(rows, data.class_names))
    own -= sum(name in skipped for name in before)
    digests = [str(row[2]) for row in rows["images"]]
    names = [data.train.images.name(index) for index in range(len(data.train))]
    joint = join_groups(digests, settings.groups_of([called.get(name, name) for name in names]), groups)
    division = divide(
        data.train.labels[:own],
        [str(label) for label in data.labels[:own_labels]],
        requests,
        folds=settings.folds,
        most_tuned=settings.shots,
        held_out=settings.held_out,
        groups=joint[:own],
        contents=digests[:own],
        seed=settings.seed,
    )
    if added is not None:
        division = extended(division, data.train.labels, [str(label) for label in data.labels], joint, own)
    if announce is not None:
        announce([*chosen, *plan_sentences(division), *_other_images(data, skipped, settings.group_by, division)])
    place = Path(settings.work_dir).expanduser() if settings.work_dir else cache_folder(FITS)
    work = place / f"{slug(data.name)}-{fit_digest(settings, configs, data, digests, division)[:12]}"
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CalpromptError(
            f"cannot write to {work}: {error.strerror or error}; choose another place with ",
            Parameter("work_dir", "FOLDER"),
        ) from error
    with locked(work):
        fit = _Fit(settings, data, own, division, digests, resources, work, progress)
        best = fit.choose(candidates, budget, joint, announce)
        refusal = _doubt(division, requests, settings, best, data, own)
        if refusal is not None and division.smaller is not None:
            more = len(division.smaller.tune) - len(division.tune)
            division = replace(division.smaller, refusals=(refusal, *division.smaller.refusals))
            if announce is not None:
                why = f"It cannot be promised that {refusal.promise}: {refusal.detail}."
                tune, held = len(division.tune), len(division.promise)
                announce([why, f"So {more} more images are learned from: {tune} tune now, and {held} are held out."])
            fit = replace(fit, division=division)
            best = fit.choose([*candidates, *fit.added], budget, joint, announce, best.choice)
        predicted, final = fit.finish(best.config, best.predicted)
        model = _finish(settings, requests, data, own, best.config, division, predicted, final, skipped, best.choice)
        model = replace(model, findings=_findings(data, digests, best.config, resources))
    shutil.rmtree(work, ignore_errors=True)
    return model


def _findings(
    data: LabelledImages, digests: Sequence[str], config: RunConfig, resources: Resources
) -> tuple[Finding, ...]:
    """What may be wrong with the images, from features that the runs have computed."""
    unreadable = UnreadableImages()
    features = resources.features(run_backbone(config, resources), data.train.images, unreadable=unreadable)[0]
    names = [data.train.images.name(index) for index in range(len(data.train))]
    labels = [str(label) for label in data.labels]
    rows = features.double().numpy()
    found, _ = feature_findings(rows, data.train.labels, names, labels, join_groups(digests), most=QUICK)
    return in_order(found)


def _doubt(
    division: Division, requests: Requests, settings: FitSettings, best: _Best, data: LabelledImages, own: int
) -> Refusal | None:
    """Why the images held out for the promise on errors had better be learned from; None if they had not."""
    if division.smaller is None:
        return None
    crossed = best.predicted.take(best.predicted.fold >= 0)
    kept = in_proportion(crossed, _totals(data, own))
    pilot = Evidence.of(crossed.logits[kept], best.probabilities[kept], crossed.labels[kept])
    rule = DecisionRule(costs=cost_matrix(settings.costs, [str(label) for label in data.labels]))
    return doubtful_promise(requests, pilot, len(division.promise), division.unseen, own, rule)


def _totals(data: LabelledImages, rows: int) -> tuple[int, ...]:
    """How many of the first images each class has."""
    return tuple(np.bincount(data.train.labels[:rows], minlength=len(data.labels)).tolist())


def _with_backbone(settings: FitSettings, resources: Resources) -> tuple[FitSettings, list[str]]:
    """A backbone for settings that name none, and why it is that one; photographs are what people mostly have."""
    if settings.backbone is not None:
        return settings, []
    try:
        resources.identity(DEFAULT_BACKBONE, config=settings.backbone_config, dtype=settings.dtype)
    except NotFoundError as error:
        reason = str(error).splitlines()[0]
        why = f"Backbone: {FOR_PHOTOGRAPHS}, which is in the package and knows photographs, as calprompt {reason}."
        return replace(settings, backbone=FOR_PHOTOGRAPHS, backbone_config=None), [why]
    return replace(settings, backbone=DEFAULT_BACKBONE), []


def fit_digest(
    settings: FitSettings,
    configs: Sequence[RunConfig],
    data: LabelledImages,
    digests: Sequence[str],
    division: Division,
) -> str:
    """sha256 of all that a fit depends on, so that only the same fit goes on where it was stopped."""
    payload = {
        "configs": [
            {name: value for name, value in config.record().items() if name not in ("data", "root", "classes")}
            for config in configs
        ],
        "requests": {name: getattr(settings, name) for name in REQUESTS if name not in ("root", "classes", "fixes")},
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
    own: int  # the images from there on were added
    division: Division
    digests: list[str]
    resources: Resources
    work: Path
    progress: Progress
    added: Sequence[Candidate] = ()

    def config_of(self, candidate: Candidate) -> RunConfig:
        """The settings of the runs of a candidate."""
        return self.settings.run_config(self.data.name, len(self.data.labels), candidate.tuner, candidate.options)

    def choose(
        self,
        candidates: Sequence[Candidate],
        budget: float,
        groups: Sequence[Any],
        announce: Callable[[Sequence[str]], None] | None,
        before: Choice | None = None,
    ) -> _Best:
        """The best candidate, with its settings; of those that were best before, on fewer images."""
        behind: tuple[Contender, ...] = ()
        if before is not None:
            names, behind = before.narrowed()
            by_name = {candidate.name: candidate for candidate in candidates}
            candidates = [by_name[name] for name in names]
        clock = _Clock(self.work / CLOCK, budget)
        crossed: list[Crossed] = []
        found: dict[str, _Best] = {}
        untried = [] if before is None else list(before.untried)
        waiting = list(candidates)
        while waiting:
            candidate = waiting.pop(0)
            config = self.config_of(candidate)
            predicted, key = None, f"{candidate.name}, {len(self.division.tune)} images"
            limit = clock if crossed and key not in clock.done else None  # the first one is compared in any case
            if key not in clock.untried:
                which = candidate.name if len(candidates) > 1 else None
                predicted = self.cross_fit(config, which, limit)
            if predicted is None:
                untried.append(candidate.name)
                clock.leave_out(key)
                continue
            clock.finish(key)
            own = predicted.take(predicted.fold >= 0)
            probabilities = fold_by_fold(self.settings.calibrator, own, *self.text_of(config))
            found[candidate.name] = _Best(predicted, config, probabilities)
            if len(candidates) == 1 and before is None:
                return found[candidate.name]
            crossed.append(Crossed.of(candidate, probabilities, own.labels))
            if announce is not None:
                right = 100 * float(crossed[-1].right.mean())
                announce([f"{candidate.name}: {crossed[-1].nll:.3f} nats per image, {right:.1f} % right"])
            if before is None and not waiting and not self.added:
                self.added = between(min(crossed, key=lambda each: each.nll).candidate)
                waiting = list(self.added)
        ranked = rank(crossed, [groups[row] for row in self.in_folds() if row < self.own])
        choice = Choice(
            self.settings.tuner,
            dict(self.settings.options or {}),
            tuple(row for _, row in ranked),
            len(ranked[0][0].losses),
            tuple(untried),
            self.settings.budget if untried else None,
            behind,
        )
        return replace(found[ranked[0][0].candidate.name], choice=choice)

    def in_folds(self) -> list[int]:
        """The images that tune, fold by fold."""
        tune, folds = np.array(self.division.tune), np.array(self.division.folds)
        return [int(row) for fold in range(self.division.n_folds) for row in tune[folds == fold]]

    def cross_fit(self, config: RunConfig, name: str | None = None, clock: _Clock | None = None) -> Predicted | None:
        """Images that tune, each predicted by a run that did not learn from it; None if time ran out."""
        tune, folds = np.array(self.division.tune), np.array(self.division.folds)
        parts = []
        for fold in range(self.division.n_folds):
            if clock is not None and clock.is_over():
                return None
            inside = tune[folds == fold]
            which = f"{name + ', ' if name else ''}fold {fold + 1} of {self.division.n_folds}"
            made = self.run(config, tune[folds != fold], inside, which)
            self.last = made
            parts.append(self.predicted(made, inside, np.where(inside < self.own, fold, EXTRA)))
        return joined(parts)

    def text_of(self, config: RunConfig) -> tuple[dict[str, Tensor], float]:
        """Text features and the logit scale that stand for a candidate, from the run of its last fold."""
        tensors, metadata = read_run_tensors(self.last.folder, LOGITS, self.last.record)
        return {kind: tensors[f"all/{kind}"] for kind in ("text", "frozen_text")}, float(metadata["logit_scale"])

    def finish(self, config: RunConfig, crossed: Predicted) -> tuple[Predicted, Run]:
        """The run on all images that tune, and with its predictions those of all images."""
        tune = np.array(self.division.tune)
        kinds = {PROMISED: self.division.promise, UNUSED: self.division.unused, GUARD: self.division.guard}
        held = np.array([index for some in kinds.values() for index in some], dtype=np.int64)
        final = self.run(config, tune, held if len(held) else tune, "all images")
        if not len(held):
            return crossed, final
        use = np.repeat(list(kinds), [len(some) for some in kinds.values()])
        return joined([crossed, self.predicted(final, held, use)]), final

    def run(self, config: RunConfig, train: NDArray[np.int64], test: NDArray[np.int64], which: str) -> Run:
        """One training, found finished if it was done before."""

        def report(what: str, done: int, total: int, note: str = "") -> None:
            self.progress(f"{what} ({which})" if what == "training" else what, done, total, note)

        empty = self.data.train.take([])
        part = Part(
            self.data.class_names, self.data.train.take(train.tolist()), empty, self.data.train.take(test.tolist())
        )
        kind = tuners.get(config.tuner)
        plan = RunPlan(
            config,
            self.resources.identity(config.backbone, config=config.backbone_config, dtype=config.dtype),
            part,
            None,
            template=config.template or self.data.template_of(kind.template_table) or TEMPLATE,
            dataset=self.data.name,
            data_digest=data_digest(part, None, {}),
        )
        try:
            return run(
                plan, self.work, resources=self.resources, progress=report, checkpoint_seconds=CHECKPOINT_SECONDS
            )
        except CalpromptError as error:
            error.rename(out="work_dir")  # where a fit puts its runs
            raise

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


@dataclass(frozen=True, eq=False)
class _Best:
    """The chosen candidate: cross-fitted predictions, its settings, probabilities of those in folds, and the choice."""

    predicted: Predicted
    config: RunConfig
    probabilities: NDArray[np.float64]
    choice: Choice | None = None


class _Clock:
    """How much of the budget is used, also by earlier attempts at the same fit, and what it was enough for."""

    def __init__(self, path: Path, budget: float) -> None:
        self.path, self.budget, self.start = path, budget, time.monotonic()
        record = read_json(path) if path.is_file() else {}
        self.before, self.untried = float(record.get("seconds", 0)), list(record.get("untried", []))
        self.done = list(record.get("done", []))

    def is_over(self) -> bool:
        """Whether the budget is used up."""
        used = self.before + time.monotonic() - self.start
        if np.isfinite(self.budget):
            write_json(self.path, {"seconds": used, "untried": self.untried, "done": self.done})
        return used > self.budget

    def leave_out(self, name: str) -> None:
        """Note a candidate that there is no time for, so that the fit leaves it out when it is continued."""
        if name not in self.untried:
            self.untried.append(name)
            self.is_over()

    def finish(self, name: str) -> None:
        """Note a candidate that is compared, so that the fit compares it again when it is continued."""
        if name not in self.done:
            self.done.append(name)
            self.is_over()


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
            CalpromptWarning(
                f"the class names {shorten(map(repr, strange))} are no words, and the model learns from names; rename "
                "the folders, or give names with ",
                Parameter("classes", "FILE"),
            ),
            stacklevel=4,
        )


def _warn_of_labels(doubtful: Sequence[str]) -> None:
    """Warn of the same file under two classes, of which one label is wrong or the classes overlap."""
    if doubtful:
        number = "one image is" if len(doubtful) == 1 else f"{len(doubtful)} images are"
        warnings.warn(
            f"{number} in more than one class, byte for byte; one label must be wrong:{bullets(doubtful)}", stacklevel=4
        )


def _finish(
    settings: FitSettings,
    requests: Requests,
    data: LabelledImages,
    own: int,
    config: RunConfig,
    division: Division,
    predicted: Predicted,
    final: Run,
    skipped: dict[str, str],
    choice: Choice | None,
) -> FittedModel:
    """Everything after the last training."""
    tensors, metadata = read_run_tensors(final.folder, LOGITS, final.record)
    prompts, prompt_record = read_run_tensors(final.folder, PROMPTS, final.record)
    text = {kind: tensors[f"all/{kind}"] for kind in ("text", "frozen_text")}
    scale = float(metadata["logit_scale"])
    crossed, held = predicted.take(predicted.fold >= 0), predicted.take(predicted.fold == PROMISED)
    totals = _totals(data, own)
    crossed = crossed.take(in_proportion(crossed, totals))
    calibrator, note = fit_calibrator(settings.calibrator, crossed, text, scale)
    notes = [*division.notes, *([note] if note else [])]
    pilot, promised, guard = (
        Evidence.of(part.logits, calibrated(calibrator, part, text, scale), part.labels)
        for part in (crossed, held, predicted.take(predicted.fold == GUARD))
    )
    names = [str(label) for label in data.labels]
    open_set = fit_open_set(settings.none_of_these, crossed, held) if settings.none_of_these else None
    rule, promises = make_promises(
        requests,
        pilot,
        promised,
        open_set=open_set,
        temperature=temperature_of(calibrator),
        refusals=division.refusals,
        unseen=division.unseen,
        total=own,
        costs=cost_matrix(settings.costs, names),
        class_names=names,
        guard=guard,
        unguarded=division.unguarded,
    )
    largest = int(np.argmax(totals))
    checks = []
    if len(held):
        checks.append(check("held out", promised, names, majority=largest, zero_shot_logits=held.zero_shot_logits))
    alone = Evidence.of(crossed.logits, fold_by_fold(settings.calibrator, crossed, text, scale), crossed.labels)
    cross = check("cross-fitted", alone, names, majority=largest, zero_shot_logits=crossed.zero_shot_logits)
    checks.insert(len(checks) if len(held) >= LEAST_HELD_OUT else 0, cross)
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
        totals=_totals(data, len(data.train)),
        folds=division.n_folds,
        predicted=predicted,
        notes=tuple(notes),
        unseen=division.unseen,
        data=data.name,
        skipped=skipped,
        logit_scale=scale,
        requests={name: getattr(settings, name) for name in REQUESTS} | _place_of_fixes(settings),
        choice=choice,
    )


def _place_of_fixes(settings: FitSettings) -> dict[str, str | None]:
    """Where the fixes are, wherever the next fit is started."""
    return {"fixes": settings.fixes and str(Path(settings.fixes).expanduser().absolute())}
