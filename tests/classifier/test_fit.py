"""Fitting: whatever images come as, each is predicted by prompts that did not see it, and a stopped fit goes on."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import samples
from calprompt import Classifier, DataError, SettingError, load_dataset
from calprompt.classifier import fitting
from calprompt.classifier.fitted_model import PROMISED
from calprompt.runs.resources import Resources
from classifier.fits import SHARED, classifier, fitted, picture_paths


def labels_of(paths: list[str]) -> list[str]:
    return [Path(path).parent.name for path in paths]


def test_all_classes_are_learned_and_every_image_is_used_once() -> None:
    model = fitted()
    assert model.classes_.tolist() == list(samples.NAMES)
    found = model.model_.predicted
    assert sorted(found.names) == sorted(f"{Path(p).parent.name}/{Path(p).name}" for p in picture_paths())
    assert [sum(pair) for pair in model.model_.counts] == [10] * 6
    assert (found.fold == PROMISED).sum() == sum(held for _, held in model.model_.counts) > 0
    assert {check.source for check in model.checks_} == {"held out", "cross-fitted"}
    assert model.predict_proba(picture_paths()[:5]).shape == (5, 6)


def test_no_image_is_predicted_by_prompts_that_saw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[set[str], set[str]]] = []
    run = fitting.run

    def spy(plan: Any, *args: Any, **options: Any) -> Any:
        names = [{s.images.name(i) for i in range(len(s))} for s in (plan.base.train, plan.base.test)]
        seen.append((names[0], names[1]))
        return run(plan, *args, **options)

    monkeypatch.setattr(fitting, "run", spy)
    model = classifier(folds=3, seed=5).fit(samples.pictures(), resources=SHARED)
    assert len(seen) == 7, "three folds, three again with the images that no promise on errors needs, and all"
    for trained, tested in seen:
        assert not trained & tested
    held = {
        name for name, fold in zip(model.model_.predicted.names, model.model_.predicted.fold, strict=True) if fold < 0
    }
    assert all(not trained & held for trained, _ in seen)
    assert set.union(*(tested for _, tested in seen)) == set(model.model_.predicted.names)


def test_images_that_no_promise_on_errors_needs_are_learned_from() -> None:
    said: list[str] = []
    model = classifier(epochs=2).fit(samples.pictures(), resources=SHARED, announce=said.extend)
    sizes = [tuple(map(sum, zip(*model.model_.counts, strict=True)))]
    fixed = classifier(held_out=0.5).fit(samples.pictures(), resources=SHARED).model_
    assert sizes == [(48, 12)]
    assert [sum(held for _, held in fixed.counts)] == [30], "a share that is asked for stays held out"
    refused, sets = model.promises_
    assert refused.status == "refused"
    assert "judged by cross-fitting, 30 held-out images have a chance of 0 % to be enough for it" in refused.detail
    assert [line for line in said if "18 more images are learned from: 48 tune now, and 12 are held out" in line]
    assert (sets.status, sets.images) == ("made", 12)


@pytest.mark.parametrize("kind", ["paths", "pillow", "arrays", "bytes", "table"])
def test_images_may_come_in_any_form(kind: str, tmp_path: Path) -> None:
    paths = picture_paths()
    X: Any = paths
    y: Any = labels_of(paths)
    if kind == "pillow":
        X = [Image.open(path) for path in paths]
    elif kind == "arrays":
        X = np.stack([np.asarray(Image.open(path)) for path in paths])
    elif kind == "bytes":
        X = [Path(path).read_bytes() for path in paths]
    elif kind == "table":
        with (tmp_path / "labels.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("path", "label"), *zip(paths, y, strict=True)])
        X, y = tmp_path / "labels.csv", None
    model = classifier(tuner="zero-shot").fit(X, y, resources=SHARED)
    assert model.classes_.tolist() == list(samples.NAMES)
    expected = classifier(tuner="zero-shot").fit(samples.pictures(), resources=SHARED)
    assert len(model.model_.predicted) == 60
    assert model.model_.counts == expected.model_.counts
    if kind in ("paths", "bytes"):  # the same digests, so the same division
        close = samples.rounding(5.0, 60)
        assert model.predict_proba(paths[:4]) == pytest.approx(expected.predict_proba(paths[:4]), abs=close)


def test_numbers_as_labels_need_names() -> None:
    paths = picture_paths()
    numbers = [samples.NAMES.index(name) for name in labels_of(paths)]
    with pytest.raises(SettingError, match="the labels are 0, 1, 2, 3, 4 and 1 more; the model learns from names"):
        classifier().fit(paths, numbers)
    model = classifier(tuner="zero-shot", class_names=dict(enumerate(samples.NAMES))).fit(
        paths, numbers, resources=SHARED
    )
    assert model.classes_.tolist() == list(range(6))
    assert model.class_names_ == samples.NAMES
    assert model.predict(paths[:3]).dtype.kind == "i"
    assert all(isinstance(label, int) for one in model.predict_set(paths[:3]) for label in one)


def test_a_stopped_fit_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "CHECKPOINT_SECONDS", 0.0)  # a checkpoint after every epoch
    settings = {"epochs": 3, "folds": 3, "tuner": "coop", "options": {"context": 2}, "seed": 3, "held_out": 0.3}
    whole = classifier(**settings, work_dir=str(tmp_path / "whole")).fit(samples.pictures(), resources=SHARED)
    assert not list((tmp_path / "whole").iterdir()), "a finished fit leaves nothing behind"
    trained: list[str] = []

    def stop(what: str, done: int, total: int, note: str = "") -> None:
        if what.startswith("training ("):
            trained.append(what)
            if what == "training (fold 2 of 3)" and done == 2:
                raise KeyboardInterrupt

    model = classifier(**settings, work_dir=str(tmp_path / "stopped"))
    with pytest.raises(KeyboardInterrupt):
        model.fit(samples.pictures(), resources=SHARED, progress=stop)
    assert not hasattr(model, "classes_")
    trained.clear()
    again: list[tuple[str, int]] = []
    model.fit(
        samples.pictures(), resources=SHARED, progress=lambda what, done, total, note="": again.append((what, done))
    )
    assert not any(what == "training (fold 1 of 3)" for what, _ in again), "a finished fold is read back"
    assert min(done for what, done in again if what == "training (fold 2 of 3)") >= 1
    for name, tensor in whole.model_.prompts.items():
        assert np.array_equal(tensor, model.model_.prompts[name])
    assert np.array_equal(whole.model_.predicted.logits, model.model_.predicted.logits)
    assert whole.rule_ == model.rule_


def test_copies_of_an_image_stay_together(tmp_path: Path) -> None:
    folder = samples.picture_folder(tmp_path / "photos", ("ant", "bee"), each=8)
    for name in ("ant", "bee"):
        for number in range(4):
            shutil.copy(folder / name / f"{number}.png", folder / name / f"copy{number}.png")
    found = classifier(tuner="zero-shot", coverage=0.5, target_error=0).fit(folder, resources=SHARED).model_.predicted
    sides: dict[str, set[int]] = {}
    for digest, fold in zip(found.digests, found.fold.tolist(), strict=True):
        sides.setdefault(digest, set()).add(fold)
    assert all(len({max(fold, PROMISED) for fold in folds}) == 1 for folds in sides.values())
    promised = [digest for digest, fold in zip(found.digests, found.fold.tolist(), strict=True) if fold == PROMISED]
    assert len(promised) == len(set(promised)), "a copy adds nothing to a promise"


def test_groups_stay_together() -> None:
    paths = picture_paths()
    groups = [int(Path(path).stem) // 2 for path in paths]
    model = classifier(tuner="zero-shot", held_out=0.4).fit(paths, labels_of(paths), groups=groups, resources=SHARED)
    named = dict(zip(paths, groups, strict=True))
    by_regex = classifier(tuner="zero-shot", held_out=0.4, group_by=r"(\d)\.png$").fit(
        samples.pictures(), resources=SHARED
    )
    for found, group in (
        (model.model_.predicted, named.__getitem__),
        (by_regex.model_.predicted, lambda name: name[-5]),
    ):
        folds: dict[Any, set[int]] = {}
        for name, fold in zip(found.names, found.fold.tolist(), strict=True):
            folds.setdefault(group(name), set()).add(max(fold, PROMISED))  # held out is held out
        assert all(len(each) == 1 for each in folds.values())
        promised = [
            group(name) for name, fold in zip(found.names, found.fold.tolist(), strict=True) if fold == PROMISED
        ]
        assert len(promised) == len(set(promised)), "a group is promised on once"
    with pytest.raises(SettingError, match="groups must have one entry per image"):
        classifier().fit(paths, labels_of(paths), groups=[1, 2])
    with pytest.raises(SettingError, match="group_by must be a regular expression"):
        classifier(group_by="(").fit(paths, labels_of(paths))


def test_a_useless_model_is_called_useless(tmp_path: Path) -> None:
    """Noise: nothing can be learned, and half of the images are of one class."""
    for name, each in (("scratch", 30), ("dent", 15), ("clean", 15)):
        for number in range(each):
            samples.picture(tmp_path / name / f"{number}.png", seed=1000 * len(name) + number)
    model = classifier().fit(tmp_path, resources=SHARED)
    text = " ".join(model.summary())
    assert "of no use as it is: always answering 'scratch' would be right on " in text
    assert ".." not in text
    assert sum(n for n, _ in model.checks_[0].per_class.values()) == model.checks_[0].images


@pytest.mark.parametrize(
    "calibrator", ["none", "temperature", "vector", "isotonic", "histogram", "dac", "sals", "temperature -> dac"]
)
def test_calibrators(calibrator: str) -> None:
    model = classifier(tuner="zero-shot", calibrator=calibrator).fit(samples.pictures(), resources=SHARED)
    probabilities = model.predict_proba(picture_paths()[:8])
    assert probabilities.sum(axis=1) == pytest.approx(1)
    if calibrator in ("vector",):
        with pytest.raises(SettingError, match="is for the classes it was fitted on"):
            model.with_classes(["yak"])
    elif calibrator != "none":
        assert model.with_classes(["yak"]).predict_proba(picture_paths()[:2]).shape == (2, 7)


def test_one_image_a_class_makes_no_promise(tmp_path: Path) -> None:
    folder = samples.picture_folder(tmp_path / "few", samples.NAMES[:4], each=1)
    model = classifier(folds=4).fit(folder, resources=SHARED)
    assert [promise.status for promise in model.promises_] == ["refused", "refused"]
    assert all(promise.needed is not None and promise.needed > 4 for promise in model.promises_)
    assert model.checks_[0].source == "cross-fitted"
    assert any("4 classes with one image" in note for note in model.model_.notes)
    (only,) = model.predict_set(folder / "ant" / "0.png")
    assert set(only) == set(samples.NAMES[:4]), "a set without a promise is all classes"


def test_classes_never_held_out_are_named_wherever_promises_are(tmp_path: Path) -> None:
    folder = samples.picture_folder(tmp_path / "tail", samples.NAMES[:3], each=12)
    samples.picture(folder / "yak" / "0.png", seed=900)
    model = classifier(tuner="zero-shot", coverage=0.7, target_error=0).fit(folder, resources=SHARED)
    (promise,) = model.promises_
    words = "the images of yak (2.7 % of the images), of which none could be held out, count as wrong"
    assert promise.excluded == ("yak",)
    assert words in promise.sentence
    assert any(words in line for line in model.summary())
    place = model.save(tmp_path / "model")
    assert words in (place / "README.md").read_text(encoding="utf-8")
    again = Classifier.load(place)
    assert again.promises_ == model.promises_
    assert again.model_.unseen == model.model_.unseen
    assert again.model_.unseen.share == pytest.approx(1 / 37)


def test_added_classes_withdraw_promises_everywhere() -> None:
    model = fitted()
    more = model.with_classes(["yak", "zebu"])
    assert more.classes_.tolist() == [*samples.NAMES, "yak", "zebu"]
    assert {promise.status for promise in more.promises_} <= {"withdrawn", "refused"}
    assert not any(answer.promised for answer in more.answer(picture_paths()[:3]))
    assert model.promises_ != more.promises_
    assert model.predict_proba(picture_paths()[0]).shape == (1, 6), "the model itself stays as it was"
    only = model.with_classes(["yak", "zebu"], keep=False, adjust="dac")
    assert only.predict_proba(picture_paths()[0]).shape == (1, 2)
    with pytest.raises(SettingError, match="has 'Ant' already"):
        model.with_classes(["Ant"])
    with pytest.raises(SettingError, match="save the model as it was fitted"):
        more.save("nowhere")
    with pytest.raises(SettingError, match="adjust must be 'dac' or None"):
        model.with_classes(["yak"], adjust="sals")


def test_evaluating_refuses_images_it_learned_from(tmp_path: Path) -> None:
    model = fitted()
    with pytest.raises(DataError, match="60 images of photos were used to fit the model"):
        model.evaluate(samples.pictures())
    fresh = tmp_path / "fresh"
    for label, name in enumerate(samples.NAMES):
        for number in range(3):
            samples.picture(fresh / name / f"{number}.png", seed=5000 + 10 * label + number)
    check = model.evaluate(fresh)
    assert check.images == 18
    assert check.outcomes["answer"] + check.outcomes["unsure"] + check.outcomes["none of these"] == 18
    paths = sorted(map(str, fresh.rglob("*.png")))
    assert model.evaluate(paths, labels_of(paths)).accuracy == check.accuracy
    assert model.score(paths, labels_of(paths)) == check.accuracy
    with pytest.raises(DataError, match="classes that the model does not know: gnu"):
        model.evaluate(paths[:1], ["gnu"])


def test_bad_images_are_listed_or_left_out(tmp_path: Path) -> None:
    folder = samples.picture_folder(tmp_path / "photos", ("ant", "bee"), each=6)
    (folder / "ant" / "bad.png").write_text("no image")
    with pytest.raises(DataError, match=r"one image cannot be read.*\n  ant/bad.png"):
        classifier().fit(folder)
    model = classifier(skip_bad=True, tuner="zero-shot").fit(folder, resources=SHARED)
    assert list(model.model_.skipped) == ["ant/bad.png"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"target_error": 1.0}, "target_error must be a share"),
        ({"coverage": -0.5}, "coverage must be a share"),
        ({"folds": 1}, "folds must be at least 2"),
        ({"shots": 0}, "shots must be at least 1"),
        ({"tuner": "kgcop"}, "Did you mean 'kgcoop'"),
        ({"loss": "tpct"}, "Did you mean 'tcpt'"),
        ({"calibrator": "temprature"}, "Did you mean 'temperature'"),
        ({"epochs": "ten"}, "epochs must be a whole number or None"),
        ({"per_class": True, "coverage": 0}, "per_class is about prediction sets"),
    ],
)
def test_invalid_settings_are_refused_before_anything_is_computed(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        classifier(**settings).fit(samples.pictures())


@pytest.mark.parametrize(
    ("X", "y", "problem"),
    [
        (["a.png"], None, "y is missing"),
        (["a.png"], ["cat", "dog"], "X has 1 images and y has 2 labels"),
        ([], [], "there are no images"),
        (["a.png", "b.png"], ["cat", None], "a label for every image, got None"),
        (["a.png", "b.png"], ["cat", 1], "labels of one kind"),
        ("photo.png", ["cat"], "X is one image or one folder"),
        (["a.png", "b.png"], ["cat", "Cat"], "the model reads these alike"),
        (["a.png", "b.png"], ["cat", "cat"], "all images are of one class"),
        ("nowhere", None, "there is no data at nowhere"),
    ],
)
def test_invalid_images_are_reported(
    X: Any, y: Any, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("a.png", "b.png")):
        samples.picture(tmp_path / name, seed=number)
    with pytest.raises((SettingError, DataError), match=problem):
        classifier(tuner="zero-shot").fit(X, y)


def test_something_is_learned_on_the_pocket() -> None:
    """Signs, 12 images a class: better than zero-shot on images that took no part, and calibrated."""
    data = load_dataset("pocket_signs")
    rows = [index for index in range(len(data.train)) if index % 32 < 12]
    split = data.train.take(rows)
    root = Path(split.images.root)
    model = Classifier("pocket", tuner="kgcoop", epochs=15, folds=2, verbose=False, coverage=0.8)
    model.fit(
        [root / path for path in split.images.paths],
        [data.class_names[label] for label in split.labels],
        resources=SHARED,
    )
    assert len(model.classes_) == 22
    check = model.checks_[0]
    assert check.zero_shot is not None
    assert check.accuracy > check.zero_shot + 0.05
    assert check.metrics["nll"] < 3


def test_majority_class_is_of_the_folder(tmp_path: Path) -> None:
    """Also where a limit on tuning makes classes equal."""
    for name, each in (("ant", 20), ("bee", 100)):
        for number in range(each):
            samples.picture(tmp_path / name / f"{number}.png", seed=1000 * len(name) + 500 * (name == "bee") + number)
    model = classifier(tuner="zero-shot", shots=10).fit(tmp_path, resources=SHARED)
    assert model.model_.totals == (20, 100)
    assert model.checks_[0].majority_class == "bee"
    assert model.checks_[0].majority == pytest.approx(100 / 120, abs=0.03)


@pytest.mark.parametrize("kind", ["numpy integers", "floats", "booleans", "strings"])
def test_labels_of_any_plain_type_are_saved_and_evaluated(kind: str, tmp_path: Path) -> None:
    paths = [path for path in picture_paths() if Path(path).parent.name in ("ant", "bee")]
    second = [Path(path).parent.name == "bee" for path in paths]
    values: list[Any] = {
        "numpy integers": [np.int64(each) for each in second],
        "floats": [float(each) for each in second],
        "booleans": second,
        "strings": [str(each) for each in second],
    }[kind]
    names = None if kind == "strings" else {values[0]: "ant", values[-1]: "bee"}
    model = classifier(tuner="zero-shot", class_names=names).fit(paths, values, resources=SHARED)
    loaded = Classifier.load(model.save(tmp_path / "model"))
    fresh = [str(tmp_path / f"{number}.png") for number in range(4)]
    for number, path in enumerate(fresh):
        samples.picture(Path(path), seed=3000 + number)
    assert loaded.evaluate(fresh, [values[0], values[-1]] * 2).images == 4
    assert loaded.classes_.tolist() == model.classes_.tolist()


def test_strange_labels_are_refused_before_anything_is_computed() -> None:
    import datetime

    with pytest.raises(SettingError, match=r"labels that are text or numbers, got datetime\.date"):
        classifier().fit(picture_paths()[:2], [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)])


def test_two_fits_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    settings = {"work_dir": str(tmp_path), "seed": 11}
    first = classifier(**settings)

    def meanwhile(what: str, done: int, total: int, note: str = "") -> None:
        if not hasattr(first, "other") and what.startswith("training ("):
            first.other = classifier(**settings, calibrator="none").fit(samples.pictures(), resources=SHARED)

    first.fit(samples.pictures(), resources=SHARED, progress=meanwhile)
    assert first.other.classes_.tolist() == first.classes_.tolist()


def test_failed_fit_leaves_the_old_model_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier(tuner="zero-shot").fit(samples.pictures(), resources=SHARED)
    paths = [path for path in picture_paths() if Path(path).parent.name in ("ant", "bee")]

    def fail(*_: Any) -> None:
        raise RuntimeError("late")

    monkeypatch.setattr(fitting.FittedModel, "predictor", fail)
    with pytest.raises(RuntimeError, match="late"):
        model.fit(paths, labels_of(paths), resources=SHARED)
    assert len(model.classes_) == 6 == model.predict_proba(paths[0]).shape[1]


def test_bad_images_stay_left_out_afterwards(tmp_path: Path) -> None:
    train = samples.picture_folder(tmp_path / "train", ("ant", "bee"), each=6)
    model = classifier(skip_bad=True, tuner="zero-shot").fit(train, resources=SHARED)
    fresh = tmp_path / "fresh"
    for number, name in enumerate(("ant", "bee")):
        samples.picture(fresh / name / "0.png", seed=4000 + number)
    (fresh / "ant" / "bad.png").write_text("no image")
    assert model.evaluate(fresh).images == 2


def test_replaced_classes_are_in_every_set_per_class() -> None:
    model = classifier(tuner="zero-shot", per_class=True, coverage=0.5, target_error=0).fit(
        samples.pictures(), resources=SHARED
    )
    other = model.with_classes(["yak", "zebu"], keep=False)
    assert set(other.predict_set(picture_paths()[0], coverage=0.5, per_class=True)[0]) == {"yak", "zebu"}


def test_without_weights_and_network_photographs_get_the_model_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    said: list[str] = []
    model = classifier(backbone=None).fit(samples.pictures(), resources=Resources(), announce=said.extend)
    assert said[0].startswith("Backbone: pocket-photo, which is in the package and knows photographs, as calprompt")
    assert "ViT-B-16-quickgelu/openai: HF_HUB_OFFLINE is set" in said[0]
    assert model.model_.config.backbone == "pocket-photo"
    assert model.backbone is None
