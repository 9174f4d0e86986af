"""The tuner of docs/add-a-tuner.md, run as it stands there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import samples
from calprompt import tuners
from calprompt.cli import main
from calprompt.runs.execute import run
from calprompt.tuners.base import tuners as registered

PAGE = Path(__file__).parents[2] / "docs" / "add-a-tuner.md"


@pytest.fixture(scope="module")
def preface(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file, whose tuner is forgotten afterwards: other tests try every tuner that is registered."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path_factory.mktemp("own") / "preface.py"
    path.write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registered, "_things", dict(registered._things))
        yield path


def test_it_runs_from_the_command_line(preface: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = re.search(r"^calprompt (train --import preface\.py .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    places = {"preface.py": preface, "SPEC": samples.backbone(), "DATA": samples.feature_file()}
    given = [str(places.get(word, word)) for word in command[1].split()]
    assert main([*given, "--epochs", "3", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "preface (tcpt)" in printed
    assert "novel" in printed


def test_it_is_a_tuner_like_any_other(preface: Path, tmp_path: Path) -> None:
    config = samples.config(tuner="preface", options={"words": "a sketch of a"}, imports=(str(preface),))
    assert "preface" in tuners.available()
    one, two = run(config, tmp_path / "one"), run(config, tmp_path / "two")
    prompts = [(done.folder / "prompts.safetensors").read_bytes() for done in (one, two)]
    assert prompts[0] == prompts[1]
    assert one.history()[-1]["ce"] < one.history()[0]["ce"]
    assert torch.isfinite(torch.tensor([one.metrics["novel"]["ece"]]))
