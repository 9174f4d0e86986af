"""Runs that take validation images from elsewhere: what can be fitted, what they are, and what stands beside them."""

from __future__ import annotations

import csv
import io
import json
import shutil
from functools import cache
from pathlib import Path

import pytest

import samples
from calprompt.cli import main
from calprompt.errors import SettingError
from calprompt.evaluation.run_evaluation import evaluate_run
from calprompt.evaluation.settings import EvaluationSettings
from calprompt.results.collecting import results
from calprompt.results.table import merge_tables, read_table
from calprompt.runs.config import RunConfig
from calprompt.runs.execute import run
from calprompt.runs.folder import LOGITS, load_run, read_run_tensors
from calprompt.runs.planning import find_finished, plan, settings_record
from calprompt.runs.restoring import config_of_record
from calprompt.sweep.driver import run_sweep
from calprompt.sweep.expansion import Cell
from calprompt.sweep.sweep_file import read_sweep
from calprompt.sweep.sweep_plan import plan_sweep
from sweep import sweeps

MARK = "validated on test images"


@cache
def without_val() -> Path:
    tensors = {name: tensor for name, tensor in samples.tensors().items() if not name.startswith("val")}
    return samples.tensor_file(samples.shared() / "unvalidated.safetensors", tensors)


@cache
def trained(validation: str) -> Path:
    """Folder of a run; no test writes into it."""
    config = samples.config(without_val(), validation=validation)
    return run(config, samples.shared() / "validated").folder


def copied(validation: str, to: Path) -> Path:
    return Path(shutil.copytree(trained(validation), to / trained(validation).name))


def fitted_on(folder: Path) -> tuple[int, bool]:
    """How many validation images there are, and whether a temperature could be fitted."""
    evaluation = evaluate_run(folder, EvaluationSettings(("temperature",), bootstrap=0))
    return evaluation.val_images, evaluation.calibrated[-1].state is not None


def test_what_can_be_fitted() -> None:
    assert fitted_on(trained("own")) == (0, False)
    assert fitted_on(trained("train:0.25")) == (3 * 2, True)  # of 8 images of 3 classes
    assert fitted_on(trained("test")) == (3 * 8, True)


def test_test_images_are_those_of_the_base_classes() -> None:
    tensors, metadata = read_run_tensors(trained("test"), LOGITS, load_run(trained("test")).record)
    names = metadata["image_names"]
    assert names["val"] == names["base"]
    assert tensors["val/logits"].equal(tensors["base/logits"])
    ours, theirs = (plan(samples.config(without_val(), validation=each)) for each in ("own", "test"))
    assert ours.base.train.labels == theirs.base.train.labels
    prompts = [read_run_tensors(trained(each), "prompts.safetensors", load_run(trained(each)).record)[0] for each in
               ("own", "test")]  # fmt: skip
    assert all(prompts[0][name].equal(prompts[1][name]) for name in prompts[0])


def test_more_images_than_a_dataset_has_of_its_own() -> None:
    own, kept = (
        plan(samples.config(val_shots=20, shots=2, validation=each)) for each in ("own", "train:0.5")
    )  # the file has 8 validation images of a class, and 8 to train on
    assert (len(own.base.val), len(kept.base.val)) == (3 * 8, 3 * 4)
    assert len(kept.base.train) == 3 * 2
    every = plan(samples.config(val_shots=20, shots=2, validation="test"))
    assert len(every.base.val) == 3 * 8


def test_a_run_with_the_usual_setting_is_what_it_was() -> None:
    record = json.loads((Path(__file__).parent / "earlier" / "format-2" / "run.json").read_text(encoding="utf-8"))
    assert "validation" not in record["config"]
    config = config_of_record(record["config"], Path("run.json"))
    assert config.validation == "own"
    assert plan(config).fingerprint == record["fingerprint"]
    keys = {Cell({"backbone": "pocket", "data": "pocket_photos", "tuner": "coop", "shots": 4, "seed": 2}).key,
            Cell({"backbone": "pocket", "data": "pocket_photos", "val_shots": 3}).key}  # fmt: skip
    assert keys == {"d7bc9b35d27161bc", "ffa7371471adccc2"}  # in the journals of sweeps


def test_other_settings_are_other_runs() -> None:
    base = samples.config(without_val())
    settings = ("own", "test", "train:0.25", "train:0.5")
    plans = {each: plan(samples.config(without_val(), validation=each)) for each in settings}
    assert plans["own"].fingerprint == plan(base).fingerprint
    assert len({each.fingerprint for each in plans.values()}) == 4
    same = plan(samples.config(without_val(), validation="train:.250"))
    assert same.config.validation == "train:0.25"
    assert same.fingerprint == plans["train:0.25"].fingerprint
    assert settings_record({"backbone": "a", "data": "b", "validation": "train:.250"})["validation"] == "train:0.25"
    assert settings_record({"backbone": "a", "data": "b", "validation": 0.25}) is None


def test_a_finished_run_is_found_by_its_setting(tmp_path: Path) -> None:
    photos = samples.pictures()
    config = samples.config(photos, validation="train:0.4")
    done = run(config, tmp_path)
    given = {"backbone": config.backbone, "data": str(photos), "options": {"context": 2}, "shots": 4, "views": 2,
             "epochs": 3, "batch_size": 8, "lr": 0.01, "seed": 1}  # fmt: skip
    found = find_finished({**given, "validation": "train:0.40"}, tmp_path)
    assert found is not None
    assert found.folder == done.folder
    assert find_finished({**given, "validation": "test"}, tmp_path) is None
    assert find_finished(given, tmp_path) is None
    assert run(config, tmp_path).reused


@pytest.mark.parametrize("value", ["val", "train:1.5", "train"])
def test_other_values_are_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingError, match=r"validation must be own, test, or train:SHARE"):
        RunConfig("pocket", "pocket_photos", validation=value)
    assert main(["train", "--backbone", "pocket", "--data", "pocket_photos", "--validation", value]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--validation must be own, test, or train:SHARE" in said


def test_the_reason_names_the_setting_that_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied("own", tmp_path)
    assert main(["evaluate", str(folder), "--bootstrap", "0", "--target-error", "0.1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    advice = "train it with the validation setting train:0.2, which keeps a fifth of the training images for that"
    assert said.count(advice) >= 2
    assert MARK not in said
    assert main(["predict", str(folder), str(samples.pictures()), "--calibrator", "temperature"]) == 2
    assert advice in " ".join(capsys.readouterr().err.split())


def test_tables_of_one_run_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied("test", tmp_path)
    assert main(["show", str(folder)]) == 0
    assert MARK in " ".join(capsys.readouterr().out.split())
    assert main(["evaluate", str(folder), "--bootstrap", "0", "--target-error", "0.3"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"seed 1, {MARK}" in said
    assert f"{MARK}: fitted calibrators have seen the images of the base classes" in said
    assert f"{MARK}: those of the base classes are the ones the threshold is chosen on" in said
    (entry,) = json.loads((folder / "evaluation.json").read_text())["runs"]
    assert (entry["validation"], entry["note"]) == ("test", MARK)
    other = copied("train:0.25", tmp_path)
    file = tmp_path / "both.csv"
    assert main(["evaluate", str(folder), str(other), "--bootstrap", "0", "--out", str(file)]) == 0
    notes = {row["run"]: row["note"] for row in csv.DictReader(file.open())}
    assert notes == {folder.name: MARK, other.name: ""}
    for words in (["show", str(other)], ["evaluate", str(other), "--bootstrap", "0", "--out", str(file)]):
        capsys.readouterr()
        assert main(words) == 0
        assert MARK not in capsys.readouterr().out
    assert "note" not in file.read_text().partition("\n")[0]


def test_a_sweep_has_it_as_an_axis_and_its_table_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = {"data": [str(without_val())], "validation": ["own", "train:0.25", "test"]}
    file = sweeps.write(tmp_path / "tiny.yaml", axes=axes, seeds=[1])
    out = tmp_path / "out"
    run_sweep(plan_sweep(read_sweep(file), out), executor=sweeps.Here(), store=False)
    assert plan_sweep(read_sweep(file), out).count("finished") == 3
    table = results(out)
    rows = list(csv.DictReader(io.StringIO(table.to_csv().decode())))
    assert {(row["validation"], row["note"]) for row in rows} == {("own", ""), ("train:0.25", ""), ("test", MARK)}
    fitted = {row["validation"] for row in rows if row["calibrator"] == "temperature" and row["ece"]}
    assert fitted == {"train:0.25", "test"}
    reasons = {row["reason"] for row in rows if row["validation"] == "own" and row["calibrator"] == "temperature"}
    assert all("validation setting train:0.2" in reason for reason in reasons)
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["results", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"test: {MARK}" in said
    assert f"{MARK}: 1 run" in said
    assert main(["results", str(out), "--filter", "validation=train:0.25"]) == 0
    assert MARK not in capsys.readouterr().out


def test_a_run_that_a_table_has_is_not_missing(tmp_path: Path) -> None:
    file = sweeps.write(tmp_path / "tiny.yaml", axes={"loss": ["ce"]}, seeds=[1, 2])
    out = tmp_path / "out"
    run_sweep(plan_sweep(read_sweep(file), out), executor=sweeps.Here(), store=False)
    (tmp_path / "old.csv").write_bytes(results(out).to_csv())
    old = read_table(tmp_path / "old.csv")
    shutil.rmtree(next(out.glob("*/run.json")).parent)
    assert any(row["status"] == "missing" for row in results(out).rows)
    assert not any(row["status"] == "missing" for row in merge_tables([results(out), old]).rows)
    for path in out.glob("*/run.json"):
        samples.edit_record(path.parent, lambda record: record["config"].pop("validation"))
    assert plan_sweep(read_sweep(file), out).count("finished") == 1
    assert {row["validation"] for row in results(out).rows} == {"own"}
