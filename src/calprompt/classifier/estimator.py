"""`Classifier`: from a few labelled images to a classifier whose confidence can be acted on.

classifier = Classifier("pocket").fit("photos/")    divides the images, tunes, calibrates, promises
classifier.answer("cat.jpg")                        class and probability, or unsure, or none of these
classifier.predict_proba(images)                    as scikit-learn's classifiers do
classifier.save("model")                            a folder; Classifier.load("model") reads it back
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_html_repr

from calprompt.class_names import check_class_names, normalized_name
from calprompt.classifier.card import summary
from calprompt.classifier.checks import Check, evaluate_images
from calprompt.classifier.fitted_model import FittedModel, adjusted
from calprompt.classifier.fitting import fit_model
from calprompt.classifier.model_folder import read_model, write_model
from calprompt.classifier.settings import FitSettings
from calprompt.data.checks import warn_left_out
from calprompt.data.labelled import LabelledImages, labelled_images
from calprompt.data.load import locate
from calprompt.errors import Parameter, SettingError
from calprompt.features.store import FeatureStore
from calprompt.notebook import card
from calprompt.predictor import PredictionBatch, Predictor
from calprompt.progress import Progress, show_progress, silent
from calprompt.promises import Answer, DecisionRule, ImageWatch, Promise, SetRule, make_answers
from calprompt.promises.image_watch import NO_HELD_OUT, NOT_WATCHED
from calprompt.runs.preparation import run_backbone, tuner_for_classes
from calprompt.runs.resources import Resources
from calprompt.runs.restoring import check_backbone
from calprompt.text import plural, shorten

if TYPE_CHECKING:
    from calprompt.predictor import ImageLike

ADDED = "classes were added after it was fitted"
CLASSES_SHOWN = 20  # classes of which a notebook shows how often they are right


class Classifier(FitSettings, ClassifierMixin, BaseEstimator):
    """A CLIP model tuned on a few labelled images, with calibrated probabilities and promises that can be checked.

    Its parameters are those of `FitSettings`; they are checked when it is fitted, as in scikit-learn.

    Attributes:
        classes_: The labels, in the order of the columns of probabilities.
        class_names_: The name that the model reads for each of them.
        promises_: Promises made, refused or withdrawn.
        checks_: Measurements on images that it did not learn from.
        rule_: The thresholds of answers.
        predictor_: From images to probabilities.
        model_: Everything else that was fitted.
    """

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        groups: Sequence[Any] | None = None,
        added: Any = None,
        resources: Resources | None = None,
        progress: Progress | None = None,
        announce: Callable[[Sequence[str]], None] | None = None,
    ) -> Self:
        """Divide the images, tune, calibrate, and find out what can be promised.

        A fit that was stopped goes on where it was when it is called again with the same images and settings.

        Args:
            X: A folder of class folders, a table, the name of a dataset; or, with `y`, images: paths, bytes, PIL images
                or arrays.
            y: A label for each image.
            groups: Images of one group are not divided, such as pictures of one object, patient or video.
            added: More images, such as those labelled while a model was in use, as X without y; they are learned from,
                and nothing is promised on them. With `groups`, each of them is a group by itself.
            resources: Backbones that are loaded already.
            progress: Progress callback; by default, bars on standard error if `verbose`.
            announce: Is told in sentences how the images are divided; standard error unless given, if `verbose`.

        Raises:
            CalpromptError: for whatever is wrong with the settings or the images.
        """
        start = time.perf_counter()
        settings = self.plain()
        settings.checked_requests()
        data = labelled_images(
            X,
            y,
            class_names=self.class_names,
            root=self.root,
            classes=self.classes,
            upright=not self.ignore_exif,
        )
        if y is None and isinstance(X, str | Path):
            warn_left_out(data, locate(X, self.root))
        with _bars(progress, self.verbose) as report, _with_store(resources) as shared:
            announce = announce or (_say if self.verbose else None)
            more = None if added is None else labelled_images(added, upright=not self.ignore_exif)
            model = fit_model(
                settings, data, resources=shared, groups=groups, added=more, progress=report, announce=announce
            )
            model = replace(model, seconds=round(time.perf_counter() - start, 1))
            self._take(model, shared)
        if self.verbose:
            _say(self.summary())
        return self

    def predict(self, X: ImageLike | Sequence[ImageLike]) -> NDArray[Any]:
        """The label to answer of each image, however sure it is; `answer` also says when it is not.

        That is the most probable one or, with costs, the one with the smallest expected cost.

        Args:
            X: Paths, bytes of image files, PIL images or uint8 arrays [height, width(, 3)]; one or many.
        """
        probabilities = self.predict_proba(X)
        best = self.rule_.chosen(probabilities)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: ImageLike | Sequence[ImageLike]) -> NDArray[np.float64]:
        """Calibrated probabilities [n, classes], columns as `classes_`; `X` as `predict` takes it."""
        return self._fitted().predict_proba(X)

    def predict_set(
        self, X: ImageLike | Sequence[ImageLike], *, coverage: float | None = None, per_class: bool = False
    ) -> list[tuple[Any, ...]]:
        """Labels that each image may have, the most probable first.

        Args:
            X: As `predict` takes it.
            coverage: Share of sets that contain the truth; by default, that of the fit.
            per_class: Sets whose coverage holds for each class by itself.
        """
        rule = self.set_rule(coverage, per_class)
        names = {str(label): label for label in self.classes_.tolist()}
        answers = self.answer(X, coverage=rule.coverage, per_class=per_class)
        return [tuple(names[name] for name in answer.prediction_set or ()) for answer in answers]

    def answer(
        self, X: ImageLike | Sequence[ImageLike], *, coverage: float | None = None, per_class: bool = False
    ) -> list[Answer]:
        """What to do with each image: take the class, or it is unsure, or it is none of these.

        Args:
            X: As `predict` takes it.
            coverage: Add prediction sets of this coverage.
            per_class: Sets whose coverage holds for each class by itself.
        """
        rule = None if coverage is None else self.set_rule(coverage, per_class)
        return [answer for batch in self._fitted().stream(X) for answer in self._answers(batch, rule)]

    def stream(
        self, X: Any, *, set_rule: SetRule | None = None, skip_unreadable: bool = False, progress: Progress = silent
    ) -> Iterator[tuple[list[Answer], PredictionBatch]]:
        """Answers in batches, in constant memory however many images there are.

        Args:
            X: As `predict` takes it; a generator is read as answers are taken.
            set_rule: Makes prediction sets, see `set_rule`; None: there are none.
            skip_unreadable: Go on past images that cannot be read, which the batch then names.
            progress: Progress callback.
        """
        for batch in self._fitted().stream(X, skip_unreadable=skip_unreadable, progress=progress):
            yield self._answers(batch, set_rule), batch

    def evaluate(self, X: Any, y: Any = None, *, progress: Progress = silent) -> Check:
        """Measure it on labelled images that it did not learn from.

        Args:
            X: As `fit` takes it; of data with splits, the test images.
            y: A label for each image, of those it was fitted on.
            progress: Progress callback.

        Raises:
            DataError: if there are labels that it does not know, or images that it learned from.
        """
        self._fitted()
        images = self._labelled(X, y)
        if y is None and isinstance(X, str | Path):
            warn_left_out(images, locate(X, self.root))
        return evaluate_images(self, images, progress=progress)

    def image_watch(self, *, false_alarms: float = 0.01) -> ImageWatch:
        """Watches whether new images are like those it was fitted on; needs no marks.

        Give it the logits and digests of each batch of `stream`.

        Args:
            false_alarms: Share of models that alarm although their images are alike, at most.

        Raises:
            SettingError: if there are no held-out images to compare with, or classes were added.
        """
        self._fitted()
        if self.rule_.withdrawn is not None:
            raise SettingError(f"{NOT_WATCHED}: {self.rule_.withdrawn}.")
        watch = self.model_.image_watch(false_alarms=false_alarms)
        if watch is None:
            raise SettingError(NO_HELD_OUT)
        return watch

    def set_rule(self, coverage: float | None = None, per_class: bool = False) -> SetRule:
        """How prediction sets are made.

        Args:
            coverage: One that it was fitted for; the first, unless given.
            per_class: Whether it holds for each class by itself.

        Raises:
            SettingError: if it was fitted for other coverages.
        """
        self._fitted()
        return self.rule_.set_rule(coverage, per_class)

    def with_classes(self, class_names: Sequence[str], *, keep: bool = True, adjust: str | None = None) -> Classifier:
        """The same prompts with other classes, which are known by their names alone; its promises are withdrawn.

        Args:
            class_names: Classes to add.
            keep: Keep those that it was fitted on; otherwise the given ones are all there are.
            adjust: "dac" adjusts the confidence of classes that it was not tuned on by how far tuning moved their text
                features; None: the fitted calibrator alone, which is as good with the default tuner.

        Raises:
            SettingError: if the prompts or the calibrator mean nothing for other classes.
        """
        predictor = self._fitted()
        names = check_class_names(class_names)
        known = {normalized_name(name) for name in (*self.class_names_, *map(str, self.classes_.tolist()))}
        again = [name for name in names if keep and normalized_name(name) in known]
        if again:
            raise SettingError(f"the model has {shorten(map(repr, again))} already; give classes that it does not have")
        if self.model_.calibrator is not None and not self.model_.calibrator.novel:
            raise SettingError(
                f"the calibrator {self.model_.calibrator_spec} is for the classes it was fitted on; fit the model "
                "with ",
                Parameter("calibrator", "temperature", command="fit"),
                " to add classes later",
            )
        everything = (*self.class_names_, *names) if keep else names
        with predictor.backbone.limited_threads():
            tuner, reason = tuner_for_classes(self.model_.config, predictor.tuner, everything, self.model_.template)
        if tuner is None:
            raise SettingError(f"classes cannot be added: {reason}")
        other = copy.copy(self)
        labels = (*self.classes_.tolist(), *names) if keep else names
        other.classes_ = np.array(labels, dtype=object if len({type(each) for each in labels}) > 1 else None)
        other.class_names_ = everything
        other.rule_ = self.rule_.with_classes(len(everything), keep).without_promises(ADDED)
        other.promises_ = tuple(promise.withdrawn(ADDED) for promise in self.promises_)
        other.predictor_ = Predictor(
            tuner,
            calibrator=adjusted(self.model_.calibrator, adjust),
            base_text=self.model_.text["text"],
            base_frozen_text=self.model_.text["frozen_text"],
            upright=predictor.upright,
        )
        return other

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the fitted model to a folder, with a model card; never pickled.

        Args:
            folder: That does not exist yet.
            overwrite: Replace a model that is there.
        """
        self._fitted()
        if self.rule_.withdrawn is not None:
            raise SettingError(f"{ADDED}: save the model as it was fitted, and add classes after loading it")
        return write_model(self.model_, folder, overwrite=overwrite)

    def export(
        self,
        out: str | Path,
        *,
        int8: bool = False,
        data: Any = None,
        max_accuracy_drop: float = 0.01,
        max_ece_rise: float = 0.01,
        progress: Progress = silent,
    ) -> dict[str, Any]:
        """Write it as a folder that runs with onnxruntime, numpy and Pillow alone, and answers as this does.

        Args:
            out: The folder, which must not exist or be empty.
            int8: Round the image tower to 8 bits; thresholds and promises are made again on the held-out images.
            data: For `int8`, the images that the model was fitted on, as `fit` took X (with y, a pair of X and y).
            max_accuracy_drop: For `int8`, refuse if the accuracy is lower by more than this share.
            max_ece_rise: For `int8`, refuse if the calibration error is higher by more than this share.
            progress: Progress callback.

        Returns:
            With `int8`, what was measured before and after; otherwise nothing.

        Raises:
            SettingError: if the tuner or the calibrator cannot be exported, with the reason.
        """
        from calprompt.classifier.exporting import export_classifier, export_int8

        self._fitted()
        if not int8:
            if data is not None:
                raise SettingError(
                    "is for ", Parameter("int8", True), "; without it, nothing is measured", parameter="data"
                )
            export_classifier(self, out, progress=progress)
            return {}
        if self.rule_.withdrawn is not None:
            raise SettingError(f"{ADDED}, so nothing can be measured for int8; export the model as it was fitted")
        if data is None:
            raise SettingError(
                "is measured on the images that the model was fitted on; give ",
                Parameter("data", "DATA"),
                parameter="int8",
            )
        images = self._labelled(*(data if isinstance(data, tuple) else (data,)))
        limits = {"max_accuracy_drop": max_accuracy_drop, "max_ece_rise": max_ece_rise}
        return export_int8(self.model_, self.predictor_, out, images, **limits, progress=progress)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        backbone: str | None = None,
        device: str | None = None,
        imports: Sequence[str | Path] | None = None,
        resources: Resources | None = None,
    ) -> Classifier:
        """Read a model that `save` wrote.

        Args:
            folder: The model's folder.
            backbone: New location of the backbone's weights, which must be the same weights.
            device: Instead of the one it was fitted on.
            imports: The Python files of your own that it needs; they are run only if named here.
            resources: Backbones that are loaded already.

        Raises:
            CalpromptError: if the folder is damaged, or the backbone has other weights.
        """
        model = read_model(folder, backbone=backbone, device=device, imports=imports)
        shared = resources or Resources()
        check_backbone(Path(folder), model.backbone, model.config.backbone, run_backbone(model.config, shared))
        found = cls(**model.parameters())
        found._take(model, shared)
        return found

    def summary(self) -> list[str]:
        """What was done and how sure it is, in sentences."""
        self._fitted()
        return summary(replace(self.model_, rule=self.rule_, promises=self.promises_))

    def _html_repr(self) -> str:
        """What a notebook shows, through scikit-learn: what it is worth, or before it is fitted its parameters."""
        if not hasattr(self, "model_"):
            return str(estimator_html_repr(self))
        check = self.checks_[0]
        rows = [("accuracy", check.accuracy), ("ECE", check.metrics["ece"])]
        rows += [(name, right / n) for name, (n, right) in list(check.per_class.items())[:CLASSES_SHOWN] if n]
        title = f"{self.model_.config.tuner} on {self.model_.config.backbone}: {plural(len(self.classes_), 'class')}"
        return card(title, rows, self.summary())

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.target_tags.required = False
        tags.non_deterministic = False
        return tags

    def _take(self, model: FittedModel, resources: Resources) -> None:
        predictor = model.predictor(resources)  # before anything is changed
        self.model_ = model
        self.classes_ = np.array(model.labels)
        self.class_names_ = model.class_names
        self.promises_: tuple[Promise, ...] = model.promises
        self.checks_ = model.checks
        self.rule_: DecisionRule = model.rule
        self.predictor_ = predictor

    def _fitted(self) -> Predictor:
        if not hasattr(self, "predictor_"):
            raise NotFittedError("this Classifier is not fitted yet; call fit, or Classifier.load")
        return self.predictor_

    def _labelled(self, X: Any, y: Any = None) -> LabelledImages:
        """Images as `fit` takes them; of their labels only the values matter, not what the model reads for them."""
        names = None
        if y is not None:
            y = list(y.tolist() if hasattr(y, "tolist") else y)
            names = {value: f"label {value}" for value in y}
        return labelled_images(
            X, y, class_names=names, root=self.root, classes=self.classes, upright=not self.ignore_exif
        )

    def _answers(self, batch: PredictionBatch, rule: SetRule | None) -> list[Answer]:
        labels = [str(label) for label in self.classes_.tolist()]
        logits = batch.logits.numpy()
        return make_answers(batch.names, logits, batch.probabilities, labels, self.rule_, set_rule=rule)


Classifier.__doc__ = f"{Classifier.__doc__}\n    Args:{(FitSettings.__doc__ or '').partition('Attributes:')[2]}"


def _bars(progress: Progress | None, verbose: bool) -> AbstractContextManager[Progress]:
    return show_progress(quiet=not verbose) if progress is None else nullcontext(progress)


@contextmanager
def _with_store(resources: Resources | None) -> Iterator[Resources]:
    """Resources with a store of features, through which the runs of a fit share theirs."""
    shared = resources or Resources()
    before = shared.store
    try:
        shared.store = before or FeatureStore()
        yield shared
    finally:
        shared.store = before


def _say(lines: Sequence[str]) -> None:
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for line in lines:
        console.print(line, markup=False)
