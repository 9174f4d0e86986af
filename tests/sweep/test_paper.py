"""The paper's sweeps: one file per table or figure, in three forms, each of which says truly what it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from calprompt.papers import sweep_files
from calprompt.runs.config import build_config, read_recipe
from calprompt.sweep.sweep_file import available, read_sweep
from calprompt.tuners import available as tuners

ROOT = Path(__file__).parents[2]
RELEASED = sorted(name for name in available() if name.endswith("-released"))
POCKET = sorted(name for name in available() if name.startswith("paper/pocket-"))
MIXED = "paper/main-mixed"
PAPER = sorted(set(available()) - {*RELEASED, *POCKET, MIXED})


def header(name: str) -> list[str]:
    text = sweep_files()[name].read_text(encoding="utf-8")
    return [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]


def test_every_table_has_three_forms() -> None:
    assert sorted(f"{name}-released" for name in PAPER) == RELEASED
    assert sorted(name.replace("paper/", "paper/pocket-") for name in PAPER) == POCKET


@pytest.mark.parametrize("name", available())
def test_headers_are_true(name: str) -> None:
    """What it is, its command, and how many runs; every run can be made."""
    lines, sweep = header(name), read_sweep(name)
    assert lines[0].startswith("The paper's ")
    command = next(line for line in lines if line.startswith("calprompt sweep "))
    assert command.split()[2] == name
    stated = re.search(r"^([\d,]+) runs", "\n".join(lines), re.MULTILINE)
    assert stated is not None
    assert int(stated[1].replace(",", "")) == len(sweep.cells)
    for cell in {repr((each.settings["tuner"], each.settings["loss"])): each for each in sweep.cells}.values():
        assert json.loads(json.dumps(build_config(**cell.settings).record())) == cell.record


@pytest.mark.parametrize("name", PAPER)
def test_the_released_form_differs_in_settings_of_training_alone(name: str) -> None:
    """Same tuners, losses, data and seeds; the paper's learning rate and batch size, or the released ones."""
    what = ("backbone", "data", "tuner", "loss", "seed", "shots", "protocol", "diagnose_every")

    def cells(name: str) -> list[tuple[object, ...]]:
        return [tuple(cell.settings.get(each) for each in what) for cell in read_sweep(name).cells]

    assert cells(name) == cells(f"{name}-released")
    assert read_sweep(name).transfer == read_sweep(f"{name}-released").transfer
    assert {(c.settings["lr"], c.settings["batch_size"]) for c in read_sweep(name).cells} == {(0.005, 8)}
    for cell in read_sweep(f"{name}-released").cells:
        recipe = read_recipe(f"{cell.settings['tuner']}-tcpt")[1]
        assert (cell.settings["lr"], cell.settings["batch_size"]) == (recipe["lr"], recipe["batch_size"])


@pytest.mark.parametrize("name", POCKET)
def test_the_pocket_form_asks_the_same_question(name: str) -> None:
    """The same tuners and objectives, on the pocket; the margin of MbLS is that of the pocket's logit scale."""
    small, large = read_sweep(name), read_sweep(name.replace("pocket-", ""))
    pocket_mbls = "ce + 0.1*mbls(cosine_margin=0.1)"
    losses = {cell.settings["loss"].replace(pocket_mbls, "mbls") for cell in small.cells}
    assert losses == {cell.settings["loss"] for cell in large.cells}
    more = {"paper/pocket-time": {"coop", "kgcoop"}}.get(name, set())
    assert {c.settings["tuner"] for c in small.cells} == {c.settings["tuner"] for c in large.cells} | more
    assert {cell.settings["backbone"] for cell in small.cells} == {"pocket"}
    assert all(str(cell.settings["data"]).startswith("pocket_") for cell in small.cells)


def keys(*names: str) -> set[str]:
    return {cell.key for name in names for cell in read_sweep(f"paper/{name}").cells}


@pytest.mark.parametrize("form", ["{}", "{}-released", "pocket-{}"])
def test_tables_of_the_same_runs_find_them(form: str) -> None:
    """What headers say of runs that are found in the folder of another sweep."""
    main, tuners, ablation = (form.format(name) for name in ("main", "tuners", "ablation"))
    assert keys(form.format("ace-mce")) < keys(main)
    assert keys(form.format("variance")) < keys(main, tuners)
    assert keys(form.format("miscalibration")) < keys(ablation)
    assert keys(form.format("margins")) < keys(main, ablation)
    assert keys(form.format("time")) < keys(main)
    assert keys(form.format("shifts")) < keys(main)


def test_the_mixed_form_has_the_papers_tcpt_and_baselines_as_published() -> None:
    def by_method(name: str) -> dict[tuple[object, ...], dict[str, object]]:
        what = ("tuner", "loss", "data", "seed")
        return {tuple(cell.settings[each] for each in what): dict(cell.settings) for cell in read_sweep(name).cells}

    mixed, paper = by_method(MIXED), by_method("paper/main")
    assert set(mixed) == set(paper)
    assert all(mixed[key] == settings for key, settings in paper.items() if key[1] == "tcpt")
    published = {"coop": (0.002, 32, 200), "maple": (0.0035, 4, 5), "kgcoop": (0.002, 128, 100)}
    for (tuner, loss, *_), cell in mixed.items():
        if loss != "tcpt":
            assert (cell["lr"], cell["batch_size"], cell["epochs"]) == published[str(tuner)]


@pytest.mark.parametrize("name", ["paper/main", "paper/main-released", MIXED])
def test_every_dataset_has_validation_images_for_temperature_scaling(name: str) -> None:
    """ImageNet has none of its own; they are kept from its training images, never taken from its test images."""
    for cell in read_sweep(name).cells:
        expected = "train:0.1" if cell.settings["data"] == "imagenet" else "own"
        assert cell.settings.get("validation", "own") == expected


def test_the_grids_of_the_paper() -> None:
    main = read_sweep("paper/main")
    assert len(main.cells) == 3 * 5 * 11 * 3
    assert len(read_sweep("paper/tuners").cells) == 4 * 4 * 10 * 3
    both = {cell.settings["tuner"] for name in ("main", "tuners") for cell in read_sweep(f"paper/{name}").cells}
    assert both == {"coop", "cocoop", "maple", "kgcoop", "proda", "prograd", "promptsrc"} <= set(tuners())
    assert [target.data for target in read_sweep("paper/shifts").transfer] == [
        "imagenetv2",
        "imagenet_sketch",
        "imagenet_a",
        "imagenet_r",
    ]
    assert {cell.settings["shots"] for cell in read_sweep("paper/shots").cells} == {4, 8, 16, 32}
    assert len({cell.settings["options"]["words"] for cell in read_sweep("paper/phrases").cells}) == 4
    assert {cell.settings["diagnose_every"] for cell in read_sweep("paper/gradients").cells} == {1}


def test_pocket_rates_equal_the_experiment() -> None:
    rates = json.loads((ROOT / "experiments" / "pocket_rates.json").read_text("utf-8"))
    for name in POCKET:
        for cell in read_sweep(name).cells:
            assert cell.settings["lr"] == rates[cell.settings["tuner"]]["rate"], name


def test_dry_runs_need_no_torch_and_no_data(tmp_path: Path) -> None:
    """And less than two seconds of the processor each."""
    script = """
import sys, time
from calprompt.cli import main
for name in sys.argv[1:]:
    began = time.process_time()
    assert main(["sweep", name, "--dry-run", "--out", "runs"]) == 0
    print("took", name, time.process_time() - began)
assert not {"torch", "open_clip", "transformers"} & set(sys.modules)
"""
    command = [sys.executable, "-c", script, *available()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    took = dict(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("took "))
    assert set(took) == set(available())
    assert max(map(float, took.values())) < 2
    assert not list(tmp_path.iterdir())


def test_the_docs_have_a_row_for_every_sweep() -> None:
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for name in PAPER:
        bare = name.removeprefix("paper/")
        (row,) = [line for line in rows if f"`{bare}`" in line]
        counts = [f"{len(read_sweep(each).cells):,}" for each in (name, f"paper/pocket-{bare}")]
        assert [cell.strip() for cell in row.strip("|").split("|")][2:4] == counts, row
