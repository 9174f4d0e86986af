"""The page on own losses and calibrators: its file and its examples run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from calprompt import calibrators, losses

PAGE = Path(__file__).parents[2] / "docs" / "add-a-loss-or-calibrator.md"


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page registers is gone after the test."""
    for registry in (losses.losses, calibrators.calibrators):
        monkeypatch.setattr(registry, "_things", dict(registry._things))


def test_the_page_runs(registries: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, *examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    (tmp_path / "my_methods.py").write_text(file, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    scope: dict = {}
    for number, example in enumerate(examples):
        exec(compile(example, f"{PAGE.name}, example {number}", "exec"), scope)

    assert {"confidence"} <= set(losses.available())
    assert str(scope["objective"]) == "ce + 0.5*confidence(power=2)"
    right = (scope["logits"].argmax(dim=1) == scope["labels"]).double().mean()
    assert scope["sure"].item() == pytest.approx(right.item(), abs=1e-6)
    assert scope["both"].keeps_argmax
    assert scope["calibrated"].dtype == torch.float64
