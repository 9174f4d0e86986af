"""Fitting a classifier: divide the images, cross-fit, choose the learner, tune, calibrate, promise.

    images ── divide ──┬─ tune ──┬─ fold 1 … K: a run without the fold ── logits of the fold ─┬─ choice of the learner
                       │         │                                                            ├─ calibrator
                       │         └─ a run on all of them ── what is learned                   ├─ temperature of sets
                       │                                       │                              └─ none of these
                       └─ held out ────────────────────────── logits ── promises, check

Every training is a run in a folder of its own, so that a fit that was stopped goes on where it was.
"""

from __future__ import annotations

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
from calprompt.classifier.adding import extended, names_in_data, with_added
from calprompt.classifier.checks import check
from calprompt.classifier.choosing import Candidate, Choice, Contender, Crossed, between, candidates_of, rank
from calprompt.classifier.fitted_model import (
    EXTRA,
    GUARD,
    PROMISED,
    UNUSED,
    FittedModel,
    Predicted,
    calibrated,
    fit_calibrator,
    fit_open_set,
    fold_by_fold,
    in_proportion,
    joined,
    temperature_of,
)
from calprompt.classifier.settings import DEFAULT_BACKBONE, FitSettings, cost_matrix, seconds_of
from calprompt.data.checks import UnreadableImages, find_unreadable, image_digests, two_labels
from calprompt.data.dataset import Split
from calprompt.data.images import ImageFiles
from calprompt.data.labelled import LabelledImages
from calprompt.data.splits import Part
from calprompt.errors import CalpromptError, CalpromptWarning, DataError, NotFoundError, Parameter, SettingError
from calprompt.evaluation.settings import NONE, create_calibrator, normalized_spec
from calprompt.files import FITS, cache_folder, failing_as, json_digest, locked, read_json, write_json
from calprompt.inspection.inspect import Finding, apply_fixes, feature_findings, in_order
from calprompt.pocket import FOR_PHOTOGRAPHS
from calprompt.progress import Progress, silent
from calprompt.promises import (
    DecisionRule,
    Division,
    Evidence,
    Promise,
    Requests,
    divide,
    doubtful_promise,
    make_promises,
)
from calprompt.promises.division import join_groups, plan_sentences
from calprompt.promises.track_record import CROSS_FITTED, HELD_OUT
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
MOST_TO_CHECK = 2e8  # images times classes times dimensions up to which labels are checked, within seconds
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
    with failing_as(f"cannot write to {work}", "; choose another place with ", Parameter("work_dir", "FOLDER")):
        work.mkdir(parents=True, exist_ok=True)
    with locked(work):
        fit = _Fit(settings, data, own, division, digests, joint, resources, work, progress, announce)
        best, choice = fit.choose(candidates)
        refusal = fit.doubt(requests, best)
        if refusal is not None and division.smaller is not None:
            more = len(division.smaller.tune) - len(division.tune)
            division = replace(division.smaller, refusals=(refusal, *division.smaller.refusals))
            if announce is not None:
                why = f"It cannot be promised that {refusal.text}: {refusal.detail}."
                tune, held = len(division.tune), len(division.promise)
                announce([why, f"So {more} more images are learned from: {tune} tune now, and {held} are held out."])
            fit = replace(fit, division=division)
            best, choice = fit.choose([*candidates, *fit.between], choice)
        model = fit.finish(requests, best, choice, skipped)
    shutil.rmtree(work, ignore_errors=True)
    return model


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
    return json_digest(payload)


@dataclass(eq=False)
class _Fit:
    settings: FitSettings
    data: LabelledImages
    own: int  # the images from there on were added
    division: Division
    digests: list[str]
    groups: Sequence[Any]
    resources: Resources
    work: Path
    progress: Progress
    announce: Callable[[Sequence[str]], None] | None
    between: Sequence[Candidate] = ()  # compared beside those that were given

    def choose(self, candidates: Sequence[Candidate], before: Choice | None = None) -> tuple[Crossed, Choice | None]:
        """The best candidate; of those that were best before, on fewer images."""
        behind: tuple[Contender, ...] = ()
        if before is not None:
            names, behind = before.narrowed()
            by_name = {candidate.name: candidate for candidate in candidates}
            candidates = [by_name[name] for name in names]
        clock = _Clock(self.work / CLOCK, seconds_of(self.settings.budget))
        crossed: list[Crossed] = []
        untried = [] if before is None else list(before.untried)
        waiting = list(candidates)
        while waiting:
            candidate = waiting.pop(0)
            key = f"{candidate.name}, {len(self.division.tune)} images"
            limit = clock if crossed and key not in clock.done else None  # the first one is compared in any case
            which = candidate.name if len(candidates) > 1 else None
            found = None if key in clock.untried else self.cross_fit(candidate, which, limit)
            clock.note(clock.untried if found is None else clock.done, key)
            if found is None:
                untried.append(candidate.name)
                continue
            if len(candidates) == 1 and before is None:
                return found, None
            crossed.append(found)
            if self.announce is not None:
                right = 100 * found.accuracy
                self.announce([f"{candidate.name}: {found.nll:.3f} nats per image, {right:.1f} % right"])
            if before is None and not waiting and not self.between:
                self.between = between(min(crossed, key=lambda each: each.nll).candidate)
                waiting = list(self.between)
        tune, folds = np.array(self.division.tune), np.array(self.division.folds)
        in_folds = [row for fold in range(self.division.n_folds) for row in tune[folds == fold] if row < self.own]
        ranked = rank(crossed, [self.groups[row] for row in in_folds])
        best = ranked[0][0]
        return best, Choice(
            self.settings.tuner,
            dict(self.settings.options or {}),
            tuple(row for _, row in ranked),
            len(best.labels),
            tuple(untried),
            self.settings.budget if untried else None,
            behind,
        )

    def cross_fit(self, candidate: Candidate, name: str | None, clock: _Clock | None) -> Crossed | None:
        """Images that tune, each predicted by a run that did not learn from it; None if time ran out."""
        tune, folds = np.array(self.division.tune), np.array(self.division.folds)
        parts = []
        for fold in range(self.division.n_folds):
            if clock is not None and clock.is_over():
                return None
            inside = tune[folds == fold]
            which = f"{name + ', ' if name else ''}fold {fold + 1} of {self.division.n_folds}"
            made = self.run(candidate, tune[folds != fold], inside, which)
            parts.append(self.predicted(made, inside, np.where(inside < self.own, fold, EXTRA)))
        predicted = joined(parts)
        own = predicted.crossed
        probabilities = fold_by_fold(self.settings.calibrator, own, *_text_of(made))  # text of the last fold
        return Crossed(candidate, probabilities, own.labels, predicted)

    def doubt(self, requests: Requests, best: Crossed) -> Promise | None:
        """Why the images held out for the promise on errors had better be learned from; None if they had not."""
        if self.division.smaller is None or best.predicted is None:
            return None
        crossed = best.predicted.crossed
        kept = in_proportion(crossed, self.totals(self.own))
        pilot = Evidence.of(crossed.logits[kept], best.probabilities[kept], crossed.labels[kept])
        rule = DecisionRule(costs=cost_matrix(self.settings.costs, [str(label) for label in self.data.labels]))
        return doubtful_promise(requests, pilot, len(self.division.promise), self.division.unseen, self.own, rule)

    def totals(self, rows: int) -> tuple[int, ...]:
        """How many of the first images each class has."""
        return tuple(np.bincount(self.data.train.labels[:rows], minlength=len(self.data.labels)).tolist())

    def run(self, candidate: Candidate, train: NDArray[np.int64], test: NDArray[np.int64], which: str) -> Run:
        """One training, found finished if it was done before."""

        def report(what: str, done: int, total: int, note: str = "") -> None:
            self.progress(f"{what} ({which})" if what == "training" else what, done, total, note)

        config = self.config_of(candidate)
        images = self.data.train
        part = Part(self.data.class_names, images.take(train.tolist()), images.take([]), images.take(test.tolist()))
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

    def config_of(self, candidate: Candidate) -> RunConfig:
        return self.settings.run_config(self.data.name, len(self.data.labels), candidate.tuner, candidate.options)

    def predicted(self, made: Run, rows: NDArray[np.int64], fold: NDArray[np.int64]) -> Predicted:
        """What a run says of images it was not tuned on."""
        tensors, metadata = read_run_tensors(made.folder, LOGITS, made.record)
        labels, logits, untuned = (tensors[f"all/{name}"].numpy() for name in ("labels", "logits", "zero_shot_logits"))
        digests = [self.digests[row] for row in rows]
        return Predicted(metadata["image_names"]["all"], digests, labels, logits, untuned, fold)

    def finish(self, requests: Requests, best: Crossed, choice: Choice | None, skipped: dict[str, str]) -> FittedModel:
        """The run on all images that tune, and everything after it: calibrator, promises, checks."""
        settings, data, division = self.settings, self.data, self.division
        assert best.predicted is not None
        predicted, final = best.predicted, self.last(best.candidate)
        held_rows = [*division.promise, *division.unused, *division.guard]
        if held_rows:
            use = [PROMISED] * len(division.promise) + [UNUSED] * len(division.unused) + [GUARD] * len(division.guard)
            predicted = joined([predicted, self.predicted(final, np.array(held_rows), np.array(use))])
        prompts, prompt_record = read_run_tensors(final.folder, PROMPTS, final.record)
        text, scale = _text_of(final)
        crossed, held, totals = predicted.crossed, predicted.held_out, self.totals(self.own)
        crossed = crossed.take(in_proportion(crossed, totals))
        calibrator, note = fit_calibrator(settings.calibrator, crossed, text, scale)
        pilot, promised, guard = (
            Evidence.of(part.logits, calibrated(calibrator, part, text, scale), part.labels)
            for part in (crossed, held, predicted.take(predicted.fold == GUARD))
        )
        names = [str(label) for label in data.labels]
        rule, promises = make_promises(
            requests,
            pilot,
            promised,
            open_set=fit_open_set(settings.none_of_these, crossed, held) if settings.none_of_these else None,
            temperature=temperature_of(calibrator),
            refusals=division.refusals,
            unseen=division.unseen,
            total=self.own,
            costs=cost_matrix(settings.costs, names),
            class_names=names,
            guard=guard,
            unguarded=division.unguarded,
        )
        alone = Evidence.of(crossed.logits, fold_by_fold(settings.calibrator, crossed, text, scale), crossed.labels)
        checks = tuple(
            check(source, evidence, names, majority=int(np.argmax(totals)), zero_shot_logits=part.zero_shot_logits)
            for source, evidence, part in ((HELD_OUT, promised, held), (CROSS_FITTED, alone, crossed))
            if len(part)
        )
        fixes = settings.fixes and str(Path(settings.fixes).expanduser().absolute())  # wherever the next fit is started
        return FittedModel(
            config=self.config_of(best.candidate),
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
            checks=checks if len(held) >= LEAST_HELD_OUT else checks[::-1],
            counts=division.counts,
            totals=self.totals(len(data.train)),
            folds=division.n_folds,
            predicted=predicted,
            notes=(*division.notes, *([note] if note else [])),
            unseen=division.unseen,
            data=data.name,
            skipped=skipped,
            logit_scale=scale,
            requests={**{name: getattr(settings, name) for name in REQUESTS}, "fixes": fixes},
            findings=self.findings(best.candidate),
            choice=choice,
        )

    def last(self, candidate: Candidate) -> Run:
        """The run on all images that tune, which predicts those that are held out."""
        tune, division = np.array(self.division.tune), self.division
        held = np.array([*division.promise, *division.unused, *division.guard], dtype=np.int64)
        return self.run(candidate, tune, held if len(held) else tune, "all images")

    def findings(self, candidate: Candidate) -> tuple[Finding, ...]:
        """What may be wrong with the images, from features that the runs have computed."""
        images, backbone = self.data.train.images, run_backbone(self.config_of(candidate), self.resources)
        rows = self.resources.features(backbone, images, unreadable=UnreadableImages())[0].double().numpy()
        names, labels = [images.name(index) for index in range(len(images))], [str(each) for each in self.data.labels]
        groups = join_groups(self.digests)
        return in_order(feature_findings(rows, self.data.train.labels, names, labels, groups, most=MOST_TO_CHECK)[0])


def _text_of(made: Run) -> tuple[dict[str, Tensor], float]:
    tensors, metadata = read_run_tensors(made.folder, LOGITS, made.record)
    return {kind: tensors[f"all/{kind}"] for kind in ("text", "frozen_text")}, float(metadata["logit_scale"])


class _Clock:
    """How much of the budget is used, also by earlier attempts at the same fit, and what it was enough for."""

    def __init__(self, path: Path, budget: float) -> None:
        self.path, self.budget, self.start = path, budget, time.monotonic()
        record = read_json(path) if path.is_file() else {}
        self.before, self.untried = float(record.get("seconds", 0)), list(record.get("untried", []))
        self.done = list(record.get("done", []))

    def is_over(self) -> bool:
        used = self.before + time.monotonic() - self.start
        if np.isfinite(self.budget):
            write_json(self.path, {"seconds": used, "untried": self.untried, "done": self.done})
        return used > self.budget

    def note(self, names: list[str], name: str) -> None:
        """Note a candidate as compared or left out, so that the fit does the same when it is continued."""
        if name not in names:
            names.append(name)
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
        lines.append(f"Left out, because they cannot be read:{bullets(skipped)}")
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
