"""Runs that earlier versions wrote: each release leaves one here, and all of them are found, read and used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from calprompt.cli import main
from calprompt.evaluation.predicting import fitted_calibrator
from calprompt.evaluation.run_evaluation import evaluate_run
from calprompt.evaluation.settings import EvaluationSettings
from calprompt.predictor import Predictor
from calprompt.runs.config import Target, build_config
from calprompt.runs.execute import run
from calprompt.runs.folder import LOGITS, load_run, read_evaluation, read_run_tensors
from calprompt.runs.planning import plan
from calprompt.runs.restoring import config_of_record
from calprompt.runs.transfer import evaluate_on

FOLDERS = sorted(path for path in (Path(__file__).parent / "earlier").iterdir() if path.is_dir())


@pytest.fixture(params=FOLDERS, ids=lambda path: path.name)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy under the name that its version gave it."""
    record = load_run(request.param).record
    return Path(shutil.copytree(request.param, tmp_path / record["id"]))


def test_it_is_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = load_run(folder)
    assert done.status == "finished"
    assert done.metrics["base"]["accuracy"] == pytest.approx(0.425)
    assert [transfer.name for transfer in done.transfers] == ["pocket_digits"]
    assert [row["epoch"] for row in done.history()] == [1, 2]
    assert main(["show", str(folder)]) == 0
    assert "42.50" in capsys.readouterr().out
    measured = evaluate_run(folder, EvaluationSettings((), bootstrap=0))
    assert measured.calibrated[0].values["base"]["accuracy"].value == pytest.approx(0.425)


def test_asking_for_it_again_finds_it(folder: Path) -> None:
    settings = load_run(folder).record["config"]
    config = config_of_record(settings, folder)
    planned = plan(config)
    assert planned.locate(folder.parent) == folder
    again = run(config, folder.parent)
    assert again.reused
    assert again.folder == folder
    other = plan(build_config(backbone="pocket", data="pocket_photos", epochs=2, shots=2, tuner="kgcoop"))
    assert not other.locate(folder.parent).exists()


def test_it_predicts_and_is_evaluated_on_other_data(folder: Path) -> None:
    done = load_run(folder)
    tensors, _ = read_run_tensors(folder, LOGITS, done.record)
    planned = plan(config_of_record(done.record["config"], folder))
    images = planned.base.test.images.take(range(0, len(planned.base.test), 40))
    stored = tensors["base/logits"][::40].double().softmax(dim=1).numpy()
    found = Predictor.from_run(folder).predict_proba(images)
    torch.testing.assert_close(torch.from_numpy(found), torch.from_numpy(stored), atol=1e-5, rtol=0)
    assert evaluate_on(folder, Target("pocket_digits")).reused


def test_what_calibrators_learned_is_read_back(folder: Path) -> None:
    evaluation = read_evaluation(folder)
    assert evaluation is not None
    states = {each["calibrator"]: each["state"] for each in evaluation["runs"][0]["calibrators"]}
    assert fitted_calibrator(load_run(folder), "temperature").state() == states["temperature"]
