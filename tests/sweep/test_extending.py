"""Sweep files that extend others, and choose some of the runs of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calprompt.errors import CalpromptError
from calprompt.sweep.sweep_file import Sweep, extend, parse_sweep, read_sweep

FIRST = """
settings: {backbone: pocket, shots: 4, options: {position: end}}
axes: {data: [pocket_photos, pocket_food], loss: [ce, tcpt]}
zip: [{recipe: [coop-tcpt, kgcoop-tcpt], lr: [0.1, 0.2]}]
seeds: [1, 2]
calibrators: [dac]
exclude: [{loss: ce, data: pocket_food}]
"""


def read(folder: Path, text: str, first: str = FIRST) -> Sweep:
    (folder / "first.yaml").write_text(first)
    (folder / "inside").mkdir(exist_ok=True)
    (folder / "inside" / "second.yaml").write_text(text)
    return read_sweep(folder / "inside" / "second.yaml")


def test_extending_without_changes_gives_the_same_sweep(tmp_path: Path) -> None:
    second = read(tmp_path, "extends: ../first.yaml", FIRST.replace("options: {position: end}", "crop: 1.0"))
    assert second.cells == read_sweep(tmp_path / "first.yaml").cells
    assert (second.name, second.calibrators) == ("second", ("dac",))


def test_names_go_over_names_wherever_they_stand(tmp_path: Path) -> None:
    first = FIRST.replace("options: {position: end}", "crop: 1.0")
    text = (
        "extends: ../first.yaml\nsettings: {data: pocket_photos, shots: 8}\nexclude: null\nseeds: [5]\ncalibrators:\n"
    )
    cells = read(tmp_path, text, first).cells
    assert [(c.settings["loss"], c.settings["tuner"]) for c in cells] == [
        (loss, tuner) for loss in ("ce", "tcpt") for tuner in ("coop", "kgcoop")
    ]
    assert {(c.settings["data"], c.settings["shots"], c.settings["crop"], c.settings["seed"]) for c in cells} == {
        ("pocket_photos", 8, 1.0, 5)
    }
    shots = read(tmp_path, "extends: ../first.yaml\naxes: {shots: [1, 2]}\nzip: null\nrecipe: coop-tcpt", first).cells
    assert {c.settings["shots"] for c in shots} == {1, 2}
    assert len(shots) == 3 * 2 * 2


def test_files_can_be_extended_in_turn(tmp_path: Path) -> None:
    first = FIRST.replace("options: {position: end}", "crop: 1.0")
    read(tmp_path, "extends: ../first.yaml\nseeds: [1]", first)
    (tmp_path / "third.yaml").write_text("extends: inside/second.yaml\nonly: [{tuner: coop}]")
    assert [cell.title for cell in read_sweep(tmp_path / "third.yaml").cells] == [
        "coop, ce, pocket_photos, seed 1",
        "coop, tcpt, pocket_photos, seed 1",
        "coop, tcpt, pocket_food, seed 1",
    ]


def test_a_sweep_file_can_extend_a_bundled_one(tmp_path: Path) -> None:
    cells = read(tmp_path, "extends: paper/pocket-main\nonly: [{tuner: coop, loss: tcpt}]\nseeds: [9]").cells
    assert [cell.settings["data"] for cell in cells] == ["pocket_animals", "pocket_food", "pocket_signs"]
    assert {cell.settings["lr"] for cell in cells} == {0.0006}


def test_only_chooses_what_matches_any_of_its_lines() -> None:
    content: dict[str, Any] = {
        "settings": {"backbone": "pocket"},
        "axes": {"data": ["pocket_photos", "pocket_food"], "loss": ["ce", "tcpt"], "shots": [1, 2]},
        "only": [{"loss": "tcpt", "shots": [2]}, {"data": "pocket_food", "shots": 1}],
        "exclude": [{"loss": "ce", "data": "pocket_food"}],
    }
    chosen = [
        (c.settings["data"], c.settings["loss"], c.settings["shots"]) for c in parse_sweep(content, "a", "a").cells
    ]
    assert chosen == [("pocket_photos", "tcpt", 2), ("pocket_food", "tcpt", 1), ("pocket_food", "tcpt", 2)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("extends: paper/mian", r"second\.yaml: extends: unknown sweep .*mian"),
        ("extends: ../none.yaml", r"cannot read sweep .*none\.yaml: No such file"),
        ("extends: second.yaml", r"second\.yaml extends .*second\.yaml, which extends it in turn: "),
        ("extends: [a]", r"extends must be text, got \['a'\]"),
        (
            "extends: ../first.yaml\nsettings: {lr: 0.1}",
            r"lr is zipped with recipe in .*first\.yaml, where values belong",
        ),
        ("extends: ../first.yaml\nrecipe: coop-tcpt", r"recipe is zipped with lr in .*; say zip as a whole here"),
        ("extends: ../first.yaml\nonly: [{tuner: maple}]", r"second\.yaml: only\[0\] chooses nothing: "),
        ("extends: ../first.yaml\nonly: [{tunr: maple}]", r"unknown setting in .*second\.yaml, only\[0\]: 'tunr'"),
        ("extends: ../first.yaml\nonly: [coop]", r"only\[0\] must be settings such as tuner: coop, got 'coop'"),
        ("extends: ../first.yaml\naxis: {}", r"unknown key in .*second\.yaml: 'axis'\. Did you mean 'axes'"),
    ],
)
def test_invalid_files_are_reported(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(CalpromptError, match=says):
        read(tmp_path, text, FIRST.replace("options: {position: end}", "crop: 1.0"))


def test_circular_extends_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml")
    (tmp_path / "b.yaml").write_text("extends: a.yaml")
    with pytest.raises(CalpromptError, match=r"extends .*a\.yaml, which extends it in turn: .*a\.yaml → .*b\.yaml → "):
        read_sweep(tmp_path / "a.yaml")


def test_nothing_of_the_other_file_is_changed() -> None:
    base = {"settings": {"shots": 4}, "axes": {"loss": ["ce"]}}
    extend(base, {"settings": {"loss": "ce"}, "axes": {"shots": [1]}}, "a", "b")
    assert base == {"settings": {"shots": 4}, "axes": {"loss": ["ce"]}}
