"""`calprompt doctor --gpu`, with the CPU in place of a GPU."""

from __future__ import annotations

import json

import pytest
import torch

from calprompt import tuners
from calprompt.cli import main
from calprompt.doctor import models


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tuners and few steps."""
    monkeypatch.setattr(models, "STEPS", 4)
    monkeypatch.setattr(tuners, "available", lambda: ["coop", "maple", "zero-shot"])


def test_a_device_that_agrees() -> None:
    found = list(models.verify_device("cpu"))
    names = [f"{tuner}, {dtype}" for tuner in ("coop", "maple") for dtype in ("float32", "bfloat16", "float16")]
    assert [each.name for each in found] == names
    assert {each.status for each in found} == {"ok"}
    assert all("ms a step" in each.value for each in found)


def test_a_device_with_wrong_results_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    train = models.train_steps

    def wrong(name: str, backbone: object) -> tuple[list[float], float]:
        if getattr(backbone, "autocast", None) is torch.float16:
            raise RuntimeError("no kernel image is available")
        losses, _ = train(name, backbone)  # type: ignore[arg-type]
        return [loss * (1 + 0.1 * (backbone is not host)) for loss in losses], 1.0

    host = models.load_embedded("pocket")
    monkeypatch.setattr(models, "load_embedded", lambda name: host)
    monkeypatch.setattr(models, "train_steps", wrong)
    found = list(models.verify_device("cpu"))
    assert {each.status for each in found} == {"problem"}
    assert "no kernel image" in found[2].value


def test_doctor_gpu_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    (found,) = models.check_gpu()
    assert (found.status, found.value) == ("note", "torch finds no GPU, so there is nothing to verify")


def test_the_command_verifies_the_gpu_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--gpu", "--json"]) == 0
    assert {each["section"] for each in json.loads(capsys.readouterr().out)["findings"]} == {"accelerators", "GPU"}
