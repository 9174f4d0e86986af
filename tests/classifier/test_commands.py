"""`calprompt fit`, and `predict` and `evaluate` with a model: as a new user would, with whatever may go wrong."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import samples
from calprompt import Classifier
from calprompt.cli import main
from classifier.fits import fitted, picture_paths, saved

FIT = ["--backbone", str(samples.backbone()), "--epochs", "1", "--folds", "2", "--tuner", "zero-shot"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    """Runs a command; gives its exit code, what it printed and its errors, each as one line."""

    def command(*words: object) -> tuple[int, str, str]:
        status = main([str(word) for word in words])
        printed = capsys.readouterr()
        return status, printed.out, " ".join(printed.err.split())

    return command


def test_from_a_folder_to_answers(tmp_path: Path, run) -> None:
    status, out, _ = run("fit", samples.pictures(), "--out", tmp_path / "model", *FIT)
    assert status == 0
    assert "60 images of 6 classes (10 each): " in out
    assert "it is right on" in out
    assert "always answering 'ant'" in out
    assert "elk" in out
    assert f"next: calprompt predict {tmp_path / 'model'} IMAGES" in " ".join(out.split())
    status, out, _ = run("predict", tmp_path / "model", picture_paths()[0], "--sets", "0.9")
    assert status == 0
    assert "may be" in out
    fresh = tmp_path / "fresh"
    for label, name in enumerate(samples.NAMES):
        for number in range(3):
            samples.picture(fresh / name / f"{number}.png", seed=7000 + 10 * label + number)
    status, out, _ = run("evaluate", tmp_path / "model", fresh)
    assert status == 0
    assert "On 18 images of fresh" in out
    assert "The set contains the truth for" in out
    status, out, _ = run("evaluate", tmp_path / "model", fresh, "--json", "--out", tmp_path / "check.json")
    assert json.loads(out)["images"] == 18 == json.loads((tmp_path / "check.json").read_text())["images"]


def test_majority_class_is_of_the_evaluated_images(tmp_path: Path, run) -> None:
    """Twenty bees and an ant, evaluated by a model that was fitted on as many of each of six classes."""
    samples.picture(tmp_path / "fresh" / "ant" / "0.png", seed=8000)
    for number in range(20):
        samples.picture(tmp_path / "fresh" / "bee" / f"{number}.png", seed=8100 + number)
    _, out, _ = run("evaluate", saved(), tmp_path / "fresh")
    text = " ".join(out.split())
    assert "always answering 'bee' 95.2 % ('ant', the most frequent class when it was fitted, 4.8 %)" in text
    assert "it is of no use as it is: always answering 'bee' would be right on 95.2 %" in text
    _, out, _ = run("evaluate", saved(), tmp_path / "fresh", "--json")
    record = json.loads(out)
    assert (record["majority_class"], record["majority"]) == ("bee", pytest.approx(20 / 21))
    assert (record["fitted_majority_class"], record["fitted_majority"]) == ("ant", pytest.approx(1 / 21))
    (tmp_path / "fresh" / "ant" / "0.png").unlink()
    (tmp_path / "fresh" / "ant").rmdir()
    _, out, _ = run("evaluate", saved(), tmp_path / "fresh")
    assert "All of these images are of 'bee': they cannot show whether it tells classes apart." in " ".join(out.split())


def test_answers_as_data(run) -> None:
    paths = picture_paths()[:7]
    _, out, _ = run("predict", saved(), *paths, "--json", "--quiet")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["name"] for row in rows] == paths
    expected = fitted().predict_proba(paths).max(axis=1)
    assert [row["probability"] for row in rows] == pytest.approx(expected.tolist(), abs=1e-5)
    _, out, _ = run("predict", saved(), *paths, "--csv", "--sets", "0.9", "--quiet")
    table = list(csv.DictReader(io.StringIO(out)))
    assert [row["class_name"] for row in table] == [row["class_name"] for row in rows]
    assert all(row["class_name"] in row["prediction_set"].split("|") for row in table)
    _, out, _ = run("predict", saved(), *paths, "--json", "--quiet", "--min-confidence", "1")
    assert {json.loads(line)["decision"] for line in out.splitlines()} <= {"unsure", "none of these"}
    assert not any(json.loads(line)["promised"] for line in out.splitlines())


def test_added_classes_are_reported_in_every_output_format(run) -> None:
    path = picture_paths()[0]
    _, out, _ = run("predict", saved(), path, "--classes", "yak", "zebu")
    assert "nothing is promised for these answers: classes were added" in " ".join(out.split())
    _, out, _ = run("predict", saved(), path, "--classes", "yak", "--json", "--quiet")
    assert json.loads(out)["promised"] is False
    status, _, err = run("predict", saved(), path, "--classes", "ant")
    assert status == 2
    assert "has 'ant' already" in err


def test_unfamiliar_images_are_reported(run, tmp_path: Path) -> None:
    """At the end of the answers, and as a warning where they are data; sorted folders are no reason for it."""
    alike, other = tmp_path / "alike", tmp_path / "other"
    for number in range(60):
        samples.picture(alike / f"{number}.png", seed=9000 + number)
        pixels = np.full((40, 40, 3), 250 - number % 8, dtype=np.uint8)
        pixels[:8, : number + 1] = 0
        other.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(other / f"{number}.png")
    _, out, _ = run("predict", saved(), alike, "--quiet")
    assert "like those" not in out
    _, out, _ = run("predict", saved(), samples.pictures(), "--quiet")
    assert "like those" not in out, "the images of the fit are not new"
    _, out, _ = run("predict", saved(), other, "--quiet")
    assert "These images are not like those the model was fitted on" in out
    assert "calprompt evaluate" in out
    _, out, err = run("predict", saved(), other, "--json", "--quiet")
    assert "These images are not like those the model was fitted on" in err
    assert all(json.loads(line)["class_name"] for line in out.splitlines()), "every line is an answer"


def test_a_watch_goes_on_from_call_to_call(run, tmp_path: Path) -> None:
    watch, paths = tmp_path / "watch.json", [tmp_path / f"{number}.png" for number in range(6)]
    for number, path in enumerate(paths):
        samples.picture(path, seed=9100 + number)
    _, out, _ = run("predict", saved(), *paths[:4], "--watch", watch, "--quiet")
    assert "No sign so far (4 images)" in out
    _, out, _ = run("predict", saved(), *paths[2:], "--watch", watch, "--quiet", "--json")
    assert len(out.splitlines()) == 4
    assert json.loads(watch.read_text())["seen"] == 6
    status, _, err = run("predict", saved(), paths[0], "--watch", tmp_path, "--quiet")
    assert status == 2
    assert str(tmp_path) in err


def test_a_model_without_held_out_images_says_that_it_watches_nothing(run, tmp_path: Path) -> None:
    folder = samples.picture_folder(tmp_path / "few", ("one", "two"), each=2)
    run("fit", folder, "--out", tmp_path / "model", *FIT)
    picture = tmp_path / "new.png"
    samples.picture(picture, seed=9200)
    _, out, _ = run("predict", tmp_path / "model", picture, "--quiet")
    assert "is not watched: it has no held-out images" in out
    status, _, err = run("predict", tmp_path / "model", picture, "--watch", tmp_path / "watch.json")
    assert status == 2
    assert "has nothing to keep" in err


def test_lists_from_standard_input(tmp_path: Path) -> None:
    paths = [*picture_paths()[:3], str(tmp_path / "nothing.png")]
    words = ("predict", saved(), "-", "--json", "--quiet", "--skip-bad")
    done = samples.command(tmp_path, *words, given="\n".join(paths))
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == paths[:3]
    assert "skipped" in done.stderr


def test_images_are_moved_by_their_answers(tmp_path: Path, run) -> None:
    inbox = samples.picture_folder(tmp_path / "inbox", ("one", "two"), each=3)
    before = {path.read_bytes() for path in inbox.rglob("*.png")}
    twice = next(inbox.rglob("*.png"))
    status, _, _ = run("predict", saved(), inbox, twice, "--move-into", tmp_path / "sorted", "--quiet")
    assert status == 0
    assert not list(inbox.rglob("*.png"))
    assert {path.read_bytes() for path in (tmp_path / "sorted").rglob("*.png")} == before, "none is lost or overwritten"
    log = list(csv.DictReader((tmp_path / "sorted" / "moved.csv").open()))
    assert len(log) == 6
    assert all(Path(row["to"]).is_file() for row in log)


def test_contradicting_options_are_refused(run, tmp_path: Path) -> None:
    path = picture_paths()[0]
    for words, problem in (
        (("predict", saved(), path, "--part", "all"), f"--part is for a run, and {saved()} is the folder of a model"),
        (
            ("predict", saved(), path, "--sets", "0.5"),
            "no prediction sets of coverage 0.5; it has 0.9; fit it with --coverage X",
        ),
        (("predict", saved(), path, "--per-class"), "give --sets"),
        (("predict", saved(), path, "--min-confidence", "2"), "--min-confidence must be a share"),
        (("predict", tmp_path, path), "is not the folder of a model or of a run"),
        (("predict", saved(), "nothing.png"), "there is no image nothing.png"),
        (("predict", saved(), path, "--backbone", "pocket"), "has other weights"),
        (("evaluate", saved()), "calprompt evaluate MODEL DATA"),
        (("evaluate", saved(), samples.pictures()), "60 images of photos were used to fit the model"),
        (("fit", samples.pictures(), "--out", saved(), *FIT), "--overwrite"),
        (("fit", "nowhere", "--out", tmp_path / "m", *FIT), "there is no data at nowhere"),
        (
            ("fit", samples.pictures(), "--out", tmp_path / "m", *FIT, "--target-error", "3"),
            "--target-error must be a share",
        ),
    ):
        status, out, err = run(*words)
        assert (status, out) == (2, ""), words
        assert problem in err, err
        assert "Traceback" not in err
    assert not (tmp_path / "m").exists()


def test_folders_that_cannot_be_fitted(run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    samples.picture_folder(tmp_path / "one", ("ant",), each=3)
    samples.picture_folder(tmp_path / "hollow", ("ant", "bee"), each=2)
    (tmp_path / "hollow" / "cat").mkdir()
    samples.picture_folder(tmp_path / "alike", ("Ant", "ant"), each=2)
    for name, problem in (
        ("empty", "has no subfolders; expected one folder of images per class"),
        ("one", "all images are of one class, 'ant'"),
        ("hollow", "cat has no images"),
        ("alike", "the model reads these alike: 'Ant' and 'ant'"),
    ):
        status, _, err = run("fit", tmp_path / name, "--out", tmp_path / "model", *FIT)
        assert status == 2
        assert problem in err
        assert not (tmp_path / "model").exists()


def test_names_that_are_no_words_are_warned_of(run, tmp_path: Path) -> None:
    samples.picture_folder(tmp_path / "numbered", ("001", "002", "003"), each=4)
    status, _, err = run("fit", tmp_path / "numbered", "--out", tmp_path / "model", *FIT)
    assert status == 0
    assert "warning: the class names '001', '002', '003' are no words" in err


def test_the_folder_of_a_split_dataset_keeps_its_test_images(run, tmp_path: Path) -> None:
    samples.picture_folder(tmp_path / "data" / "train", ("ant", "bee"), each=8)
    for label, name in enumerate(("ant", "bee")):
        for number in range(3):
            samples.picture(tmp_path / "data" / "test" / name / f"{number}.png", seed=9000 + 10 * label + number)
    assert run("fit", tmp_path / "data", "--out", tmp_path / "model", *FIT)[0] == 0
    status, out, _ = run("evaluate", tmp_path / "model", tmp_path / "data")
    assert status == 0
    assert "On 6 images of data" in out


def test_more_classes_than_are_encoded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part at a time; a list of classes as long as that is cut in messages."""
    for name, value in (("MANY_CLASSES", 110), ("CLASSES_AT_ONCE", 50)):
        monkeypatch.setattr(f"calprompt.classifier.settings.{name}", value)
    words = [f"thing number {number}" for number in range(120)]
    pictures = np.random.default_rng(0).integers(0, 255, (120, 4, 4, 3), dtype=np.uint8)
    model = Classifier(
        str(samples.backbone()), tuner="kgcoop", epochs=1, folds=2, verbose=False, work_dir=str(tmp_path)
    )
    model.fit(list(pictures), words)
    assert model.model_.config.chunk is not None
    assert model.model_.config.chunk < len(words)
    assert model.predict_proba(pictures[0]).shape == (1, 120)
    assert [promise.status for promise in model.promises_] == ["refused", "refused"]
    assert max(map(len, model.summary())) < 600


def test_one_bad_image_does_not_cost_the_answers_of_others(run, tmp_path: Path) -> None:
    inbox = samples.picture_folder(tmp_path / "inbox", ("one",), each=5)
    (inbox / "one" / "bad.png").write_text("no image")
    status, out, err = run("predict", saved(), inbox, "--json", "--quiet")
    assert status == 2
    assert len(out.splitlines()) == 5
    assert "one image cannot be read, and the others are answered" in err
