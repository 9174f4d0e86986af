"""Files of one's own, imported by path: they register, they are part of the fingerprint, their mistakes are told."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import samples
from calprompt import losses, metrics
from calprompt.cli import main
from calprompt.errors import CalpromptError
from calprompt.registry import extension_digest, load_extension
from calprompt.runs import execute
from calprompt.runs.execute import run
from calprompt.runs.folder import write_record
from calprompt.runs.planning import plan
from calprompt.runs.restoring import restore
from calprompt.serve.loading import load_served

OWN = """
from dataclasses import dataclass
from calprompt import losses

@losses.register("{name}")
@dataclass(frozen=True)
class Own:
    'A loss of a user.'

    power: float = 2.0

    def __call__(self, outputs):
        return outputs.logits.abs().pow(self.power).mean()
"""


@pytest.fixture(autouse=True)
def forget_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests try every loss that is registered."""
    monkeypatch.setattr(losses.losses, "_things", dict(losses.losses._things))


def own(folder: Path, name: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(OWN.format(name=name))
    return path


def test_own_loss_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = own(tmp_path, "first_own_loss")
    given = ["train", "--backbone", str(samples.backbone()), "--data", str(samples.feature_file()), "--epochs", "2"]
    given += ["--import", str(path), "--loss", "ce + 0.01*first_own_loss(power=1.5)", "--out", str(tmp_path / "runs")]
    assert main([*given, "--set", "context=4"]) == 0
    assert "first_own_loss" in capsys.readouterr().out
    assert "first_own_loss" in next((tmp_path / "runs").glob("*/history.jsonl")).read_text()


def test_the_files_text_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    path = own(tmp_path, "second_own_loss")
    before = plan(samples.config(imports=(str(path),))).fingerprint
    assert before != plan(samples.config()).fingerprint
    moved = tmp_path / "elsewhere.py"
    moved.write_text(path.read_text())
    assert plan(samples.config(imports=(str(moved),))).fingerprint == before
    other = own(tmp_path, "another_second_loss")
    assert plan(samples.config(imports=(str(other),))).fingerprint != before


def test_a_file_that_changed_after_it_was_imported_is_refused(tmp_path: Path) -> None:
    """What is registered is the old text; a run of it must not be filed under the new one."""
    path = own(tmp_path, "third_own_loss")
    load_extension(path)
    path.write_text(path.read_text().replace("2.0", "3.0"))
    with pytest.raises(CalpromptError, match=r"third_own_loss\.py has changed since this process imported it"):
        samples.config(imports=(str(path),))


def test_a_run_is_used_with_the_file_it_was_tuned_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own(tmp_path, "fourth_own_loss")
    monkeypatch.chdir(tmp_path)
    done = run(samples.config(imports=("fourth_own_loss.py",), loss="ce + 0.01*fourth_own_loss"), tmp_path / "runs")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert restore(done.folder).config.imports == (str(path),)

    kept = path.rename(tmp_path / "kept.py")
    with pytest.raises(CalpromptError, match=r"needs 1 Python file .* only if you name it"):
        restore(done.folder)
    path.write_text("raise SystemExit('this must not be run')")
    with pytest.raises(CalpromptError, match="was tuned with other contents of what it imports"):
        restore(done.folder, imports=[path])
    assert restore(done.folder, imports=[kept]).config.imports == (str(kept),)


def test_a_folder_never_names_code_to_run(tmp_path: Path) -> None:
    """Seals have no key: whoever can write a run or a model can write any settings into it."""
    done = run(samples.config(tuner="zero-shot"), tmp_path / "runs")
    trap, trace = tmp_path / "trap.py", tmp_path / "trace"
    trap.write_text(f"open({str(trace)!r}, 'w')")
    for digests in ([], [extension_digest(trap)]):
        record = json.loads((done.folder / "run.json").read_text())
        record["config"]["imports"], record["imports"] = [str(trap)], digests
        write_record(done.folder, record)
        with suppress(CalpromptError):
            restore(done.folder)
        with suppress(CalpromptError):
            load_served(done.folder)
        assert main(["predict", str(done.folder), str(tmp_path)]) != 0
        main(["evaluate", str(done.folder)])
        main(["results", str(done.folder.parent), "--calibrators", "temperature"])
        assert not trace.exists()


def test_list_shows_what_a_file_registers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--import", str(own(tmp_path, "fifth_own_loss"))]) == 0
    assert "fifth_own_loss" in capsys.readouterr().out


def test_a_file_may_change_while_a_run_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own(tmp_path, "sixth_own_loss")
    keep = execute.write_checkpoint

    def edited(*given: Any) -> None:
        path.write_text("# being worked on")
        keep(*given)

    monkeypatch.setattr(execute, "write_checkpoint", edited)
    config = samples.config(imports=(str(path),), loss="ce + 0.01*sixth_own_loss")
    assert run(config, tmp_path / "runs").status == "finished"


def test_a_metric_gives_a_finite_number(tmp_path: Path) -> None:
    @metrics.metrics.register("own_metric")
    def nothing(sample: metrics.Predictions) -> float:
        return float("nan")

    try:
        with pytest.raises(CalpromptError, match="metric 'own_metric' must return a finite float, got nan"):
            metrics.evaluate([[0.5, 0.5]], [0])
    finally:
        del metrics.metrics._things["own_metric"]


@pytest.mark.parametrize(("gives", "got"), [("outputs.logits.abs()", r"a tensor \(8, 3\)"), ("1.0", r"1\.0")])
def test_a_loss_gives_one_number(tmp_path: Path, gives: str, got: str) -> None:
    name = f"own_loss_that_gives_{len(gives)}"
    path = tmp_path / f"{name}.py"
    path.write_text(OWN.format(name=name).replace("outputs.logits.abs().pow(self.power).mean()", gives))
    config = samples.config(imports=(str(path),), loss=f"ce + {name}")
    try:
        with pytest.raises(CalpromptError, match=f"loss '{name}' must return a tensor of one number.*got {got}"):
            run(config, tmp_path / "runs")
    finally:
        del losses.losses._things[name]


def test_invalid_input_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CalpromptError, match="there is no Python file"):
        load_extension(tmp_path / "none.py")
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(CalpromptError, match=r"importing .*broken\.py failed: ZeroDivisionError"):
        load_extension(tmp_path / "broken.py")
    (tmp_path / "taken.py").write_text(OWN.format(name="margin"))
    with pytest.raises(CalpromptError, match="loss 'margin' is registered already"):
        load_extension(tmp_path / "taken.py")
