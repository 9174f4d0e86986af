"""Findings are the ones that were planted, and little else."""

from __future__ import annotations

import csv
import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter

from calprompt.clip.load import load_backbone
from calprompt.data.labelled import labelled_images
from calprompt.errors import DataError
from calprompt.inspection import measurements
from calprompt.inspection.inspect import apply_fixes, feature_findings, findings_table, inspect_images
from calprompt.inspection.page import render


def clusters(
    n: int, classes: int, spread: float = 0.3, seed: int = 0
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Unit features around one direction a class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    rows = np.eye(classes, 16)[labels] + spread * rng.normal(size=(n, 16)) / 4
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), labels


def test_flipped_labels_come_first_and_clean_ones_are_left_alone() -> None:
    features, labels = clusters(200, 4)
    wrong = labels.copy()
    wrong[:10] = (labels[:10] + 1) % 4
    found = measurements.suspects(measurements.out_of_fold(features, wrong, 4), wrong)
    assert {each.index for each in found} == set(range(10))
    assert all(each.looks_like == labels[each.index] for each in found)
    assert measurements.suspects(measurements.out_of_fold(features, labels, 4), labels) == []


def test_a_copy_does_not_vouch_for_a_wrong_label() -> None:
    features, labels = clusters(120, 3)
    wrong = labels.copy()
    wrong[0] = 1
    features, wrong = np.vstack([features, *[features[:1]] * 6]), np.append(wrong, [1] * 6)
    groups = [*range(120), *[0] * 6]
    folds = measurements.deal(wrong, groups, seed=0)
    assert len(set(folds[[0, *range(120, 126)]])) == 1
    found = measurements.suspects(measurements.out_of_fold(features, wrong, 3, groups=groups), wrong)
    assert {each.index for each in found} == {0, *range(120, 126)}


def test_folds_are_even_and_labels_of_tiny_classes_are_not_checked() -> None:
    labels = np.array([0] * 50 + [1] * 2)
    folds = measurements.deal(labels, None, seed=3)
    assert np.bincount(folds[:50]).tolist() == [10] * 5
    assert measurements.checkable(labels, None).tolist() == [True] * 50 + [False] * 2
    p = measurements.out_of_fold(np.eye(52), labels, 2)
    assert np.isfinite(p).all()
    assert np.allclose(p.sum(axis=1), 1)


def test_classes_alike_two_in_one_and_an_outlier() -> None:
    rng = np.random.default_rng(1)
    same = np.tile([1.0] + [0.0] * 15, (60, 1)) + 0.05 * rng.normal(size=(60, 16))
    two = np.vstack([np.tile(np.eye(16)[k], (30, 1)) for k in (4, 5)]) + 0.05 * rng.normal(size=(60, 16))
    odd = -np.eye(16)[:1]
    features = np.vstack([same, two, odd])
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.array([0, 1] * 30 + [2] * 61)
    names = [f"{i}.png" for i in range(121)]
    found, _ = feature_findings(features, labels, names, ["a", "b", "both"], None)
    by = {each.problem: each for each in found}
    assert (by["classes alike"].label, by["classes alike"].looks_like) == ("a", "b")
    assert by["class of two"].label == "both"
    assert by["unlike all others"].file == "120.png"


def picture(seed: int, size: int = 80) -> Image.Image:
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8))
    noise = rng.integers(0, 60, (size, size, 3))
    return Image.fromarray(np.clip(np.asarray(small.resize((size, size))) + noise, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inspect") / "photos"
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for number in range(12):
            picture(100 * (label == "dog") + number).save(root / label / f"{number:02d}.png")
    first = picture(0)
    first.save(root / "cat" / "saved again.jpg", quality=90)
    first.save(root / "dog" / "other class.png")
    picture(50).filter(ImageFilter.GaussianBlur(6)).save(root / "cat" / "blurred.png")
    Image.fromarray((np.asarray(picture(51)) // 7).astype(np.uint8)).save(root / "cat" / "dark.png")
    Image.new("RGB", (80, 80), (90, 90, 90)).save(root / "dog" / "blank.png")
    picture(52, 20).save(root / "dog" / "tiny.png")
    turned = picture(53)
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(root / "dog" / "turned.jpg", exif=exif, quality=95)
    (root / "dog" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    return root


@pytest.fixture(scope="module")
def found(folder: Path) -> Any:
    evaluated = folder.parent / "to evaluate"
    for label in ("cat", "dog"):
        (evaluated / label).mkdir(parents=True)
        picture(200 + (label == "dog")).save(evaluated / label / "a.png")
    picture(103).save(evaluated / "dog" / "seen.jpg", quality=92)
    data = labelled_images(folder, upright=True)
    return inspect_images(data, load_backbone("pocket"), against=labelled_images(evaluated, upright=True))


def test_planted_problems_are_found(found: Any) -> None:
    problems = {(each.problem, each.file) for each in found.findings}
    assert problems >= {
        ("copy", "cat/saved again.jpg"),
        ("copy in two classes", "dog/other class.png"),
        ("copy of an image to evaluate on", "dog/03.png"),
        ("blurred", "cat/blurred.png"),
        ("dark", "cat/dark.png"),
        ("blank", "dog/blank.png"),
        ("tiny", "dog/tiny.png"),
        ("turned by EXIF", "dog/turned.jpg"),
        ("unreadable", "dog/broken.png"),
    }
    assert not [each for each in found.findings if each.problem == "copy" and each.file != "cat/saved again.jpg"]


def test_csv_has_a_row_for_each_finding_and_the_page_needs_no_other_file(found: Any) -> None:
    rows = list(csv.DictReader(io.StringIO(findings_table(found.findings))))
    assert [row["file"] for row in rows] == [each.file for each in found.findings]
    assert list(rows[0]) == ["file", "label", "problem", "looks_like", "score", "action", "suggestion"]
    page = render(found)
    assert "saved again.jpg" in page
    assert "data:image/jpeg;base64," in page
    assert not [part for part in page.split('src="')[1:] if not part.startswith("data:")]
    assert "http" not in page


def test_fixes_leave_out_and_relabel(folder: Path, tmp_path: Path) -> None:
    data = labelled_images(folder)
    fixes = tmp_path / "fixes.csv"
    fixes.write_text("file,action,looks_like\ncat/00.png,leave out,\ncat/01.png,relabel,dog\ncat/02.png,look,dog\n")
    fixed = apply_fixes(data, fixes)
    labels = {fixed.train.images.name(i): fixed.labels[fixed.train.labels[i]] for i in range(len(fixed.train))}
    assert len(labels) == len(data.train) - 1
    assert "cat/00.png" not in labels
    assert (labels["cat/01.png"], labels["cat/02.png"]) == ("dog", "cat")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("cat/00.png,delete,", "expected look, leave out or relabel"),
        ("cat/00.png,relabel,horse", "no class 'horse'"),
        ("cat/zz.png,leave out,", "has no image cat/zz.png"),
        ("cat/00.png,relabel,dog\ncat/00.png,relabel,cat", "relabelled twice"),
    ],
)
def test_fixes_that_make_no_sense_are_refused(folder: Path, tmp_path: Path, row: str, message: str) -> None:
    fixes = tmp_path / "fixes.csv"
    fixes.write_text(f"file,action,looks_like\n{row}\n")
    with pytest.raises(DataError, match=message):
        apply_fixes(labelled_images(folder), fixes)


def test_the_page_has_the_measured_table() -> None:
    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location("inspection_experiment", root / "experiments" / "inspection.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = module.tables()
    assert table in (root / "docs" / "data.md").read_text(encoding="utf-8")
    clean = [float(line.split("|")[-2].strip().removesuffix(" %")) for line in table.splitlines()[2:]]
    assert max(clean) < 5, "few images of clean data are called mislabelled"
