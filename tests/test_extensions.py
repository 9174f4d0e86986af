"""Files of one's own, imported by path: they register, they are part of the fingerprint, their mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

import samples
from calprompt.cli import main
from calprompt.errors import CalpromptError
from calprompt.extensions import load_extension
from calprompt.runs import prepare

OWN = """
from dataclasses import dataclass
from calprompt import losses

@losses.register("{name}")
@dataclass(frozen=True)
class Own:
    power: float = 2.0

    def __call__(self, outputs):
        return outputs.logits.abs().pow(self.power).mean()
"""


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
    before = prepare(samples.config(imports=(str(path),))).fingerprint
    assert before != prepare(samples.config()).fingerprint
    path.write_text(path.read_text() + "\n# changed\n")
    assert prepare(samples.config(imports=(str(path),))).fingerprint != before


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(CalpromptError, match="there is no Python file"):
        load_extension(tmp_path / "none.py")
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(CalpromptError, match=r"importing .*broken\.py failed: ZeroDivisionError"):
        load_extension(tmp_path / "broken.py")
    (tmp_path / "taken.py").write_text(OWN.format(name="margin"))
    with pytest.raises(CalpromptError, match="loss 'margin' is registered already"):
        load_extension(tmp_path / "taken.py")
