"""Suggestions are unsure, unlike what has a label, and unlike each other."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from calprompt.classifier.suggesting import suggest
from calprompt.cli import main
from calprompt.data.load import load_dataset
from calprompt.errors import SettingError
from classifier import fits

BLOBS = np.repeat(np.eye(4), 25, axis=0) + 0.02 * np.random.default_rng(0).normal(size=(100, 4))


def test_one_of_each_group_is_suggested() -> None:
    p = np.full((100, 2), 0.5)
    assert {place // 25 for place in suggest(BLOBS, p, 4)} == {0, 1, 2, 3}


def test_labelled_images_are_not_suggested_again() -> None:
    p = np.full((100, 2), 0.5)
    assert {place // 25 for place in suggest(BLOBS, p, 2, labelled=BLOBS[:50])} == {2, 3}


def test_sure_answers_are_suggested_last() -> None:
    p = np.where(np.arange(100)[:, None] < 75, [[0.999, 0.001]], [[0.5, 0.5]])
    assert suggest(BLOBS, p, 1)[0] >= 75


@given(m=st.integers(1, 40), n=st.integers(1, 50), labelled=st.integers(0, 10), seed=st.integers(0, 9))
def test_every_image_is_suggested_at_most_once(m: int, n: int, labelled: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2, (m, 3))  # many copies, and rows of zeros
    p = rng.dirichlet([0.1, 0.1], m)
    found = suggest(x, p, n, labelled=rng.integers(0, 2, (labelled, 3)) if labelled else None)
    assert len(found) == len(set(found)) == min(m, n)
    assert all(0 <= place < m for place in found)


def test_rows_that_do_not_match_are_refused() -> None:
    with pytest.raises(SettingError, match="a row for each of the 2"):
        suggest(np.eye(2), np.eye(3), 1)


def test_the_command_lists_images_to_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "next.csv"
    command = ["suggest", str(fits.saved()), str(samples.pictures()), "--quiet", "-n", "3"]
    assert main([*command, "--out", str(out)]) == 0
    rows = list(csv.DictReader(out.open(encoding="utf-8")))
    assert len(rows) == 3
    assert all(Path(row["image"]).is_file() and row["label"] == "" for row in rows)
    out.write_text(out.read_text("utf-8").replace(",\n", ",ant\n"), "utf-8")
    data = load_dataset(out)
    parts = [part for part in (data.train, data.val, data.test) if part is not None]
    assert sum(map(len, parts)) == 3, "with labels filled in, it is a table of images"
    capsys.readouterr()
    assert main([*command, "--labelled", str(samples.pictures())]) == 0
    assert capsys.readouterr().out.startswith("image,predicted,probability,unsure\n")


def test_documented_gain_equals_the_measurements() -> None:
    root = Path(__file__).parents[2]
    rows = list(csv.DictReader((root / "experiments" / "suggest.csv").open(encoding="utf-8")))
    names = ("clothes", "digits", "signs", "animals", "flags", "objects")
    cells = []
    for method in ("random", "features", "answers"):
        for labels in (20, 50, 100):
            found = [
                float(row[f"after_{labels}"]) for row in rows if row["dataset"] in names and row["method"] == method
            ]
            assert len(found) == 3 * len(names)
            cells.append(f"{100 * float(np.mean(found)):.1f}")
    assert f"| mean | {' | '.join(cells)} |" in (root / "docs" / "practitioners.md").read_text(encoding="utf-8")
