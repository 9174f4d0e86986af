"""The folder of a model: whole or refused, never half-written, never used with other weights."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path

import pytest

import samples
from calprompt import CalpromptError, Classifier, DamagedFileError, NewerFormatError, NotFoundError, SettingError
from calprompt.classifier import model_folder
from calprompt.classifier.model_folder import CARD, CONFIG, DIAGRAM, FILES, FINDINGS, IMAGES
from calprompt.sealed_files import sealed
from classifier.fits import SHARED, classifier, fitted, picture_paths, saved


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved(), tmp_path / "model"))


def test_the_folder_has_what_it_says(model: Path) -> None:
    names = {path.name for path in model.iterdir()} - {FINDINGS}  # which is there if something was found
    assert names == {CONFIG, CARD, DIAGRAM, IMAGES, *FILES}
    config = json.loads((model / CONFIG).read_text())
    assert config["format"] == 1
    assert config["library_name"] == "calprompt"
    card = (model / CARD).read_text()
    assert card.startswith("---\nlibrary_name: calprompt\n")
    for words in (
        "## Calibration",
        "## Promises and their limits",
        "Licence:",
        "reliability.png",
        "| ant | ant | 5 | 5 |",
    ):
        assert words in card
    rows = (model / IMAGES).read_text().splitlines()
    assert rows[0] == "image,used_for,label,predicted,probability,right,decision,sha256"
    assert len(rows) == 61
    assert not any(b"pickle" in path.read_bytes() for path in model.iterdir() if path.suffix != ".png")


def test_counts_of_a_promise_can_be_recomputed(tmp_path: Path) -> None:
    """In images.csv: a confidence above the threshold is not enough, an image may be none of the classes."""
    settings = {"tuner": "zero-shot", "target_error": 0.95, "level": 0.5, "coverage": 0.5}
    model = classifier(**settings).fit(samples.pictures(), resources=SHARED)
    promise = next(each for each in model.promises_ if each.kind == "error")
    counted = re.search(r"which is (\d+) of (\d+) held-out images, (\d+) of them wrong", promise.sentence)
    assert counted is not None, promise.sentence
    rows = list(csv.DictReader((model.save(tmp_path / "model") / IMAGES).read_text().splitlines()))
    held = [row for row in rows if row["used_for"] == "promises"]
    answered = [row for row in held if row["decision"] == "answer"]
    wrong = [row for row in answered if row["right"] == "false"]
    assert [len(answered), len(held), len(wrong)] == [int(number) for number in counted.groups()]
    assert {row["decision"] for row in rows} <= {"answer", "unsure", "none of these"}


@pytest.mark.parametrize("name", [CONFIG, *FILES])
@pytest.mark.parametrize("damage", ["cut", "empty", "edited", "gone", "swapped"])
def test_damage_is_noticed_and_named(model: Path, name: str, damage: str) -> None:
    path = model / name
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        changed = bytearray(data)
        changed[len(data) // 2] ^= 1
        other = (
            json.dumps({"a": 1}).encode()
            if name == CONFIG
            else (model / next(f for f in FILES if f != name)).read_bytes()
        )
        path.write_bytes(
            {"cut": data[: len(data) // 2], "empty": b"", "edited": bytes(changed), "swapped": other}[damage]
        )
    with pytest.raises((DamagedFileError, NotFoundError), match=name):
        Classifier.load(model)


def test_a_model_of_another_version_is_refused_with_a_message(model: Path) -> None:
    record = json.loads((model / CONFIG).read_text())
    number = record.pop("format")
    record["unseen"] = {"shares": 0.1}
    (model / CONFIG).write_text(json.dumps(sealed(record, number)))
    with pytest.raises(DamagedFileError, match="was written by another version of calprompt"):
        Classifier.load(model)


@pytest.mark.parametrize("name", [CARD, DIAGRAM, IMAGES])
def test_cards_and_summaries_may_be_edited(model: Path, name: str) -> None:
    (model / name).write_text("mine")
    assert len(Classifier.load(model).classes_) == 6


def test_a_newer_format_is_reported(model: Path) -> None:
    config = json.loads((model / CONFIG).read_text())
    (model / CONFIG).write_text(json.dumps({**config, "format": 99}))
    with pytest.raises(NewerFormatError, match="update calprompt"):
        Classifier.load(model)


def test_other_weights_are_refused(model: Path) -> None:
    with pytest.raises(CalpromptError, match="pocket has other weights than"):
        Classifier.load(model, backbone="pocket")
    with pytest.raises(SettingError, match="device must be cpu, cuda, cuda:1 or the like, got 'meta'"):
        Classifier.load(model, device="meta")
    elsewhere = Path(shutil.copytree(samples.backbone(), model.parent / "moved"))
    found = Classifier.load(model, backbone=str(elsewhere))
    assert found.predict(picture_paths()[:2]).tolist() == fitted().predict(picture_paths()[:2]).tolist()


def test_folders_that_are_not_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"is not the folder of a model, it has no config\.json"):
        Classifier.load(tmp_path)


def test_nothing_is_overwritten_by_accident(model: Path, tmp_path: Path) -> None:
    before = (model / CONFIG).read_bytes()
    with pytest.raises(CalpromptError, match="overwrite=True"):
        fitted().save(model)
    assert (model / CONFIG).read_bytes() == before
    fitted().save(model, overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(CalpromptError, match="has other files in it"):
        fitted().save(tmp_path / "mine", overwrite=True)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / CONFIG).write_text('{"model_type": "clip"}')
    with pytest.raises(CalpromptError, match="has other files in it"):
        fitted().save(tmp_path / "foreign", overwrite=True)
    (model / "thesis.tex").write_text("x")
    with pytest.raises(CalpromptError, match="has other files in it"):
        fitted().save(model, overwrite=True)
    assert (model / "thesis.tex").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(CalpromptError, match="is a file"):
        fitted().save(tmp_path / "file")


@pytest.mark.parametrize("at", range(1, 7))
def test_a_failing_write_leaves_nothing_behind(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise OSError(28, "No space left on device", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CalpromptError, match="No space left on device"):
        fitted().save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_read_only_folder_is_reported_before_fitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(CalpromptError, match="Permission denied"):
        model_folder.check_place(tmp_path / "model")


def test_a_model_that_cannot_be_replaced_stays_where_it_is(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, calls = Path.rename, 0

    def second_fails(self: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(5, "Input/output error", str(target))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", second_fails)
    with pytest.raises(CalpromptError, match="nothing was changed"):
        fitted().save(model, overwrite=True)
    monkeypatch.undo()
    assert len(Classifier.load(model).classes_) == 6
    assert [path.name for path in model.parent.iterdir()] == [model.name]
