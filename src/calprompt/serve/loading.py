"""From a folder, or from a model in memory, to a `ServedModel`. An exported folder is loaded without torch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calprompt.errors import SettingError
from calprompt.files import EXPORT, MODEL, RUN, WORDS, json_digest, require_kind
from calprompt.promises import DecisionRule, TrackRecord
from calprompt.promises.image_watch import NO_HELD_OUT, NOT_WATCHED
from calprompt.promises.track_record import TEST
from calprompt.serve.decoder import View
from calprompt.serve.served_model import Predict, ServedModel
from calprompt.text import shorten

if TYPE_CHECKING:
    from calprompt.classifier.estimator import Classifier
    from calprompt.export.onnx_predictor import OnnxPredictor
    from calprompt.predictor import Predictor
    from calprompt.runs.folder import Run

ONNX = "onnx"
EDITED = "classes were edited after it was fitted"
NO_TEXT_TOWER = "an exported model has no text tower; serve the folder that calprompt fit wrote instead"


def load_served(
    folder: str | Path,
    *,
    classes: Sequence[str] | None = None,
    calibrator: str | None = None,
    part: str | None = None,
    backbone: str | None = None,
    device: str | None = None,
    imports: Sequence[str | Path] | None = None,
    threads: int | None = None,
) -> ServedModel:
    """The model in a folder: fitted, exported, or of a finished run.

    Args:
        folder: Where it is.
        classes: Instead of the classes it was fitted on.
        calibrator: Of a run; temperature if the run has validation images to fit it on, else none, unless given.
        part: Which classes of a run: "base", "novel" or "all".
        backbone: Where its weights are now; they must be the same weights.
        device: Instead of the one it was fitted on.
        imports: The Python files of your own that it needs; they are run only if named here.
        threads: Of an exported model.

    Raises:
        CalpromptError: if there is no model in the folder, it is damaged, or an argument is not for its kind.
    """
    folder = Path(folder).expanduser()
    kind = require_kind(folder, MODEL, EXPORT, RUN)
    of_runs: dict[str, Any] = {"calibrator": calibrator, "part": part}
    for name, value in of_runs.items():
        if value is not None and kind != RUN:
            raise SettingError(f"is for runs, and {folder} is the folder of {WORDS[kind]}", parameter=name)
    if kind == EXPORT:
        for name, value in {"backbone": backbone, "device": device, "imports": imports}.items():
            if value is not None:
                raise SettingError(
                    "is not for exported models, which need nothing besides their folder", parameter=name
                )
        from calprompt.export.onnx_predictor import OnnxPredictor

        found = served_export(OnnxPredictor(folder, threads=threads), folder.resolve().name)
    elif kind == MODEL:
        from calprompt.classifier.estimator import Classifier

        model = Classifier.load(folder, backbone=backbone, device=device, imports=imports)
        found = served_classifier(model, folder.resolve().name)
    else:
        from calprompt.runs.folder import load_run

        found = served_run(
            load_run(folder), calibrator=calibrator, part=part, backbone=backbone, device=device, imports=imports
        )
    return found if classes is None else found.edited(classes)


def served_classifier(model: Classifier, name: str = "model") -> ServedModel:
    """A fitted classifier.

    Args:
        model: Fitted.
        name: What it is called.
    """
    from calprompt.classifier.card import check_sentences, division_sentence

    fitted = model.model_
    watch = fitted.image_watch() if model.rule_.withdrawn is None else None
    labels = tuple(str(label) for label in model.classes_.tolist())
    read = dict(zip(labels, model.class_names_, strict=True))

    def with_labels(names: tuple[str, ...]) -> ServedModel:
        if names == labels:
            return own
        if len(names) > len(labels) and names[: len(labels)] == labels:
            other = model.with_classes(names[len(labels) :])
        else:
            other = model.with_classes([read.get(each, each) for each in names], keep=False)
        return _edited(own, names, _predict(other.predictor_), other.rule_)

    editable = fitted.calibrator is None or fitted.calibrator.novel
    own = ServedModel(
        name=name,
        kind=MODEL,
        fingerprint=_fingerprint(fitted.backbone["fingerprint"], list(fitted.class_names), _digest(fitted.prompts)),
        labels=labels,
        view=_view(model.predictor_),
        predict=_predict(model.predictor_),
        rule=model.rule_,
        promises=tuple({**promise.to_dict(), "sentence": promise.sentence} for promise in model.promises_),
        track_record=fitted.track_record if model.rule_.withdrawn is None else None,
        image_watch=None if watch is None else watch.fresh_record(),
        not_watched=NO_HELD_OUT if model.rule_.withdrawn is None else f"{NOT_WATCHED}: {model.rule_.withdrawn}.",
        calibrator=None if fitted.calibrator is None else fitted.calibrator_spec,
        about=(division_sentence(fitted), *check_sentences(fitted.checks[0], fitted.config.backbone)),
        with_labels=with_labels if editable else None,
        fixed=None if editable else f"the calibrator {fitted.calibrator_spec} is for the classes it was fitted on",
        fitted_labels=labels,
        weak=tuple(fitted.checks[0].weak_classes),
    )
    return own


def served_run(run: Run, *, calibrator: str | None = None, part: str | None = None, **where: Any) -> ServedModel:
    """A finished run; nothing is promised of its answers, and its track record is that of its test images.

    Args:
        run: Finished.
        calibrator: Fitted on its validation images; temperature where that can be, else none, unless given.
        part: Which of its classes: "base" (or "all" of a few-shot run), "novel" or "all".
        **where: backbone, device and imports, as `Predictor.from_run` takes them.
    """
    from calprompt.evaluation.predicting import default_calibrator
    from calprompt.predictor import Predictor

    spec = default_calibrator(run) if calibrator is None else calibrator

    def load(**which: Any) -> Predictor:
        return Predictor.from_run(run.folder, calibrator=spec, **which, **where)

    predictor = load(part=part)
    settings = run.record["config"]

    def with_labels(names: tuple[str, ...]) -> ServedModel:
        return own if names == own.labels else _edited(own, names, _predict(load(class_names=names)), DecisionRule())

    editable = predictor.calibrator is None or predictor.calibrator.novel
    own = ServedModel(
        name=run.folder.name,
        kind=RUN,
        fingerprint=_fingerprint(run.record["fingerprint"], spec, list(predictor.class_names)),
        labels=tuple(predictor.class_names),
        view=_view(predictor),
        predict=_predict(predictor),
        track_record=_test_record(run, predictor, part),
        not_watched=f"{NOT_WATCHED}: a run holds out none to compare them with; calprompt fit makes a model that does.",
        calibrator=None if predictor.calibrator is None else spec,
        about=(
            f"A run of {settings['tuner']} with the loss {settings['loss']} on {settings['data']}.",
            "Nothing is promised about its answers; calprompt fit makes a model that promises.",
        ),
        with_labels=with_labels if editable else None,
        fixed=None if editable else f"the calibrator {spec} is for the classes it was fitted on",
        fitted_labels=tuple(predictor.class_names),
    )
    return own


def served_export(predictor: OnnxPredictor, name: str = "model") -> ServedModel:
    """An exported folder.

    Args:
        predictor: That runs it.
        name: What it is called.
    """
    from calprompt.export.onnx_predictor import NO_SCORES

    record, labels = predictor.record, tuple(map(str, predictor.labels))
    preprocessing = record["preprocessing"]
    stored = record.get("track_record")
    return ServedModel(
        name=name,
        kind=ONNX,
        fingerprint=_fingerprint(record["checksum"]),
        labels=labels,
        view=View(
            preprocessing["size"], preprocessing["interpolation"], preprocessing["resize_mode"], record["upright"]
        ),
        predict=predictor.predict_pixels,
        rule=predictor.rule,
        promises=tuple(_read_promise(sentence) for sentence in predictor.promises),
        track_record=None if stored is None else TrackRecord.from_dict(stored),
        image_watch=record.get("image_watch"),
        not_watched=NO_SCORES,
        calibrator=record["calibrator"]["name"],
        about=(f"Exported by calprompt {record['versions']['calprompt']}; tuned with {record['tuner']}.",),
        fixed=NO_TEXT_TOWER,
        fitted_labels=labels,
        weak=tuple(record.get("weak_classes", ())),
    )


def _edited(own: ServedModel, names: tuple[str, ...], predict: Predict, rule: DecisionRule) -> ServedModel:
    added = [name for name in names if name not in own.fitted_labels]
    why = f"{EDITED}: nothing is known of {shorten(added)} but the name" if added else EDITED
    promises = tuple(_withdrawn(promise, why) for promise in own.promises)
    return replace(
        own,
        labels=names,
        predict=predict,
        rule=rule.without_promises(why),
        promises=promises,
        track_record=None,
        image_watch=None,
        not_watched=f"{NOT_WATCHED}: {why}.",
        fingerprint=_fingerprint(own.fingerprint, list(names)),
        weak=(),
    )


def _withdrawn(promise: dict[str, Any], why: str) -> dict[str, Any]:
    if promise["status"] != "made":
        return promise
    return {**promise, "status": "withdrawn", "detail": why, "sentence": f"Withdrawn: {promise['text']}: {why}."}


def _read_promise(sentence: str) -> dict[str, Any]:
    """A promise of an exported folder, which has its sentence alone."""
    starts = {"Promised: ": "made", "Not promised: ": "refused", "Withdrawn: ": "withdrawn"}
    found = {"kind": "", "text": sentence, "status": "made", "detail": "", "sentence": sentence}
    for start, status in starts.items():
        if sentence.startswith(start):
            text, _, detail = sentence.removeprefix(start).rstrip(".").partition(" (" if status == "made" else ": ")
            found |= {"text": text, "status": status, "detail": detail.removesuffix(")")}
    return found


def _predict(predictor: Predictor) -> Predict:
    def predict(images: Any) -> Any:
        batch = predictor.predict_pixels(images)
        return batch.logits.numpy(), batch.probabilities

    return predict


def _view(predictor: Predictor) -> View:
    found = predictor.backbone.preprocessing
    return View(found.size, found.interpolation, found.resize_mode, predictor.upright)


def _test_record(run: Run, predictor: Predictor, part: str | None) -> TrackRecord | None:
    """The run's test images of these very classes, under the same calibrator."""
    from calprompt.evaluation.models import TUNED, stored_models

    tests = stored_models(run)[TUNED].tests
    stored = tests.get(part or next(iter(tests)))
    if stored is None or stored.labels is None or stored.logits.shape[1] != len(predictor.class_names):
        return None
    logits = stored.logits.double() if predictor.calibrator is None else predictor.calibrator(stored)
    return TrackRecord.of(TEST, logits.softmax(dim=1).numpy(), stored.labels.numpy())


def _fingerprint(*parts: Any) -> str:
    return json_digest(list(parts))[:16]


def _digest(tensors: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].detach().cpu().contiguous().float().numpy().tobytes())
    return digest.hexdigest()
