"""The grids behind the pages on the pocket: that they make the committed runs again, and what they need beforehand."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

from calprompt import pocket
from calprompt.pocket import MODELS
from calprompt.sweep.driver import run_sweep
from calprompt.sweep.sweep_file import read_sweep
from calprompt.sweep.sweep_plan import plan_sweep
from pretrain import scales
from sweep import sweeps

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "experiments" / "sweeps").glob("*.yaml"))
RUNS = {  # how many runs a group has, if everything is run
    "published": 720 + 600 + 120 + 30, "tuned": 2205 + 735 + 405 + 135, "fresh": 72, "shifted": 70 + 18, "few": 24,
    "long": 90, "words": 120, "sharp": 120, "calibrated": 120, "depths": 162, "rates": 123, "anchor": 504,
    "photo": 84 + 24 + 96 + 48 + 24 + 48 + 96 + 16 + 96 + 72 + 96,
    "parts": 45, "lambda": 45, "alpha": 54, "shots": 48, "phrases": 48,
}  # fmt: skip


def experiment(name: str, patch: pytest.MonkeyPatch) -> ModuleType:
    patch.syspath_prepend(str(ROOT / "experiments"))
    return importlib.import_module(name)


@pytest.mark.parametrize("group", RUNS)
def test_the_grids_are_as_large_as_the_pages_say(group: str) -> None:
    cells = [cell for file in FILES if file.stem.split("-")[0] == group for cell in read_sweep(file).cells]
    assert len({cell.key for cell in cells}) == len(cells) == RUNS[group]


def test_every_file_belongs_to_a_group_and_says_how_to_run_it() -> None:
    assert {file.stem.split("-")[0] for file in FILES} == set(RUNS)
    for file in FILES:
        assert f"# calprompt sweep experiments/sweeps/{file.name} --out runs/pocket" in file.read_text("utf-8")


def test_rates_are_the_selected_ones() -> None:
    rates = json.loads((ROOT / "experiments" / "pocket_rates.json").read_text("utf-8"))
    for name in ("tuned", "tuned-five", "shifted", "anchor", "anchor-five"):
        cells = read_sweep(ROOT / "experiments" / "sweeps" / f"{name}.yaml").cells
        found = {cell.settings["tuner"]: cell.settings["lr"] for cell in cells}
        assert found == {tuner: row["rate"] for tuner, row in rates.items()}
    for tuner, entry in rates.items():
        cells = read_sweep(ROOT / "experiments" / "sweeps" / f"rates-{tuner}.yaml").cells
        assert {cell.settings["lr"] for cell in cells} == {float(rate) for rate in entry["val_nll"]}


def test_the_best_rate_has_the_lowest_nll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = experiment("pocket_rates", monkeypatch)
    monkeypatch.setattr(rates, "HERE", tmp_path)
    (tmp_path / "sweeps").mkdir()
    usual = {"tuner": "coop", "loss": "ce"}
    file = tmp_path / "sweeps" / "rates-coop.yaml"
    sweeps.write(file, axes={"lr": [0.0001, 0.3]}, seeds=[1], settings=usual)
    with pytest.raises(SystemExit, match="lacks 2 of 2 runs"):
        rates.best_rates(tmp_path / "runs")
    run_sweep(plan_sweep(read_sweep(file), tmp_path / "runs"), executor=sweeps.Here(), store=False)
    found = rates.best_rates(tmp_path / "runs")["coop"]
    assert found["published"] == 0.002
    assert found["rate"] == float(min(found["val_nll"], key=found["val_nll"].get))
    assert set(found["val_nll"]) == {"0.0001", "0.3"}


def test_shifts_are_those_of_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    page = experiment("pocket_page", monkeypatch)
    assert set(page.SHIFTS) == {name for name in pocket.names() if "of" in pocket.sheet(name).record}
    sweep = read_sweep(ROOT / "experiments" / "sweeps" / "shifted.yaml")
    assert [target.data for target in sweep.transfer] == [f"pocket_{name}" for name in page.SHIFTS]


def test_another_logit_scale_is_all_that_differs_from_the_pocket(tmp_path: Path) -> None:
    scales.scaled_model(tmp_path / "models" / "sharp", 50.0)
    folders = (tmp_path / "models" / "sharp", MODELS["pocket"])
    ours, theirs = (load_file(each / "open_clip_model.safetensors") for each in folders)
    assert ours["logit_scale"].float().exp().item() == pytest.approx(50.0, rel=0.01)  # stored in 16 bits
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == ["logit_scale"]
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["sharp"], "nothing else is left"


def test_a_calibrated_scale_makes_confidence_accuracy() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 5
    cosines = 0.1 * torch.randn(300, 5, generator=generator)
    cosines[torch.arange(300), labels] += 0.1
    scale = scales.calibrated_scale(cosines, labels)
    confidence = (scale * cosines.double()).softmax(1).amax(1).mean()
    assert float(confidence) == pytest.approx(float((cosines.argmax(1) == labels).double().mean()), abs=1e-6)
