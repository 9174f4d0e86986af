"""A new version learns from labelled pictures, promises nothing on them, and is compared on images it did not see."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import samples
from calprompt import Classifier
from calprompt.classifier.adding import comparison, extended, with_added
from calprompt.classifier.fitted_model import EXTRA, PROMISED, UNUSED
from calprompt.cli import main
from calprompt.cli.fit import unpacked
from calprompt.data.labelled import labelled_images
from calprompt.errors import DataError
from calprompt.promises import Requests, Unseen, divide
from classifier.fits import SHARED, classifier, fitted


@pytest.fixture(scope="module")
def extra(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three more pictures of a known class, and two of a new one."""
    place = tmp_path_factory.mktemp("extra")
    for number in range(3):
        samples.picture(place / "ant" / f"{number}.png", 900 + number)
    for number in range(2):
        samples.picture(place / "owl" / f"{number}.png", 950 + number)
    return place


def test_added_pictures_never_count_for_a_promise() -> None:
    labels = [0, 1] * 60 + [0, 1, 2, 2]
    own = divide(labels[:120], ["ant", "bee"], Requests(target_error=0.2), held_out=0.4)
    groups = list(range(len(labels)))
    groups[120] = own.promise[0]  # another picture of an object that is held out
    division = extended(own, labels, ["ant", "bee", "owl"], groups, 120)
    assert division.promise == own.promise
    assert 120 in division.unused
    assert set(division.tune) == {*own.tune, 121, 122, 123}
    assert division.counts == tuple(
        (division_of(division.tune, labels)[n], own_counts) for n, own_counts in enumerate(promised(own, labels))
    )
    assert division.unseen.classes == ("owl",)
    assert division.unseen.share == pytest.approx(2 / 124)
    partly = replace(own, unseen=Unseen(("wasp",), 0.1, 0.05))
    unseen = extended(partly, labels, ["ant", "bee", "owl"], groups, 120).unseen
    assert (unseen.share, unseen.crowded) == pytest.approx((0.1 * 120 / 124 + 2 / 124, 0.05 * 120 / 124))
    assert len(division.folds) == len(division.tune)
    assert division.n_folds == own.n_folds


def division_of(rows: tuple[int, ...], labels: list[int]) -> list[int]:
    return np.bincount([labels[row] for row in rows], minlength=3).tolist()


def promised(division: object, labels: list[int]) -> list[int]:
    return division_of(division.promise, labels)  # type: ignore[attr-defined]


def test_classes_of_added_pictures_are_found_by_their_names(extra: Path) -> None:
    old = labelled_images(samples.pictures())
    data = with_added(old, labelled_images(extra))
    assert data.labels == (*old.labels, "owl")
    added = data.train.labels[len(old.train) :]
    assert [data.labels[label] for label in added] == ["ant"] * 3 + ["owl"] * 2
    assert data.train.images.digest(len(data.train) - 1) == labelled_images(extra).train.images.digest(4)


def test_classes_of_added_pictures_are_not_guessed_among_several(tmp_path: Path) -> None:
    for n, name in enumerate(("C", "C++", "wasp nest")):
        samples.picture(tmp_path / "old" / name / "0.png", n)
    for n, name in enumerate(("C++", "wasp_nest", "D")):
        samples.picture(tmp_path / "new" / name / "1.png", 10 + n)
    samples.picture(tmp_path / "doubtful" / "C_" / "2.png", 20)
    old = labelled_images(tmp_path / "old")
    data = with_added(old, labelled_images(tmp_path / "new"))
    assert [data.labels[label] for label in data.train.labels[3:]] == ["C++", "D", "wasp nest"]
    with pytest.raises(DataError, match=r"'C_' may be any of 'C'.*'C\+\+'"):
        with_added(old, labelled_images(tmp_path / "doubtful"))


def test_an_added_picture_of_a_held_out_group_is_not_learned_from(tmp_path: Path) -> None:
    for label, name in enumerate(("an ant", "bee")):
        for number in range(12):
            samples.picture(tmp_path / "old" / name / f"{number // 2}_{number}.png", 100 * label + number)
    for number in range(6):
        samples.picture(tmp_path / "new" / "an_ant" / f"{number}_new.png", 700 + number)
    with zipfile.ZipFile(tmp_path / "new.zip", "w") as file:
        for path in (tmp_path / "new").rglob("*.png"):
            file.write(path, path.relative_to(tmp_path / "new"))
    settings = {"held_out": 0.5, "group_by": "^[^_]+", "tuner": "linear-probe", "options": {"strength": 1.0}}
    added = unpacked(tmp_path / "new.zip", tmp_path / "cache")
    assert unpacked(tmp_path / "new.zip", tmp_path / "cache") == added, "the same fit finds the same images"
    model = classifier(**settings).fit(tmp_path / "old", added=added, resources=SHARED).model_
    sides: dict[str, set[bool]] = {}
    for name, fold in zip(model.predicted.names, model.predicted.fold.tolist(), strict=True):
        group = f"{Path(name).parent.name.replace('_', ' ')}/{Path(name).name.split('_')[0]}"
        sides.setdefault(group, set()).add(fold in (PROMISED, UNUSED))
    assert len(sides) == 12
    assert all(len(side) == 1 for side in sides.values())
    samples.picture(tmp_path / "kept" / "bee" / f"{'0a' * 32}.png", 800)
    with pytest.raises(DataError, match="named by its content"):
        classifier(**settings).fit(tmp_path / "old", added=tmp_path / "kept", resources=SHARED)


def test_added_pictures_are_learned_from_only(extra: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixes = tmp_path / "fixes.csv"
    fixes.write_text("file,action,looks_like\n")
    monkeypatch.chdir(tmp_path)
    settings = {"held_out": 0.3, "tuner": "linear-probe", "fixes": "fixes.csv", "calibrator": "vector"}
    fit = classifier(**settings).fit(samples.pictures(), added=extra, resources=SHARED)
    model = fit.model_
    own = int(sum(fold >= 0 for fold in model.predicted.fold))
    added = {
        digest for digest, fold in zip(model.predicted.digests, model.predicted.fold, strict=True) if fold == EXTRA
    }
    assert len(added) == 5
    cross = next(each for each in model.checks if each.source == "cross-fitted")
    assert cross.images == own
    assert model.choice is not None
    assert model.choice.images == own
    assert sum(tuned for tuned, _ in model.counts) == own + 5
    assert "tuning (added)" in (fit.save(tmp_path / "model") / "images.csv").read_text()
    usual = Classifier.load(tmp_path / "model").model_.parameters()
    assert usual["fixes"] == str(fixes)
    assert usual["calibrator"] == "vector"


def test_images_that_got_another_label_are_not_compared() -> None:
    model = fitted().model_
    swapped = replace(model, labels=(model.labels[1], model.labels[0], *model.labels[2:]))
    kept = sum(label > 1 for label in model.predicted.labels[model.predicted.fold == PROMISED])
    assert f"on {kept} held-out images" in comparison(model, swapped)[0]


def test_fit_with_added_pictures_keeps_what_is_held_out_and_compares(
    extra: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "labelled.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in extra.rglob("*.png"):
            file.write(path, path.relative_to(extra))
    fit = ["fit", str(samples.pictures()), "--quiet"]
    given = ["--backbone", str(samples.backbone()), "--tuner", "linear-probe", "--held-out", "0.3", "--folds", "2"]
    old, new = tmp_path / "old", tmp_path / "new"
    assert main([*fit, *given, "--out", str(old)]) == 0
    assert main([*fit, "--add", str(archive), "--against", str(old), "--out", str(new)]) == 0
    assert "that neither learned from: it is right on" in " ".join(capsys.readouterr().out.split())
    before, after = (Classifier.load(place).model_ for place in (old, new))
    held = [
        [d for d, fold in zip(m.predicted.digests, m.predicted.fold, strict=True) if fold == PROMISED]
        for m in (before, after)
    ]
    assert held[0] == held[1], "the same images are held out"
    learned = {d for d, fold in zip(after.predicted.digests, after.predicted.fold, strict=True) if fold == EXTRA}
    images = labelled_images(extra, upright=True).train.images
    assert {images.digest(row) for row in range(5)} <= learned
    assert after.config.tuner == "linear-probe", "fitted as the model before was"
    assert "cannot be told" in comparison(before, before)[1]


@pytest.mark.parametrize("names", [["loose.png"], ["../../evil.png"]])
def test_a_zip_without_class_folders_is_refused(names: list[str], tmp_path: Path, extra: Path) -> None:
    archive = tmp_path / "bad.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in names:
            file.writestr(name, (extra / "ant" / "0.png").read_bytes())
    with pytest.raises(DataError, match="folder per class"):
        unpacked(archive, tmp_path / "out")
