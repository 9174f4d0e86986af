"""The Python in docs/data.md runs as it stands."""

import re
from pathlib import Path

import pytest

import samples
from calprompt.data.load import load_dataset
from calprompt.data.splits import few_shot
from data import trees

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = samples.picture_folder(tmp_path / "photos", each=4)
    rows = "".join(f"photos/{path.relative_to(photos)},{path.parent.name}\n" for path in sorted(photos.rglob("*.png")))
    trees.write(tmp_path / "labels.csv", rows)
    trees.make(tmp_path / "datasets", "dtd")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(block, names)
    assert names["photos"].class_names == names["listed"].class_names == samples.NAMES
    assert names["again"].train.labels == few_shot(load_dataset("datasets/dtd"), 2, 1).train.labels
