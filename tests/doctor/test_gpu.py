"""`calprompt doctor --gpu`, with the CPU in place of a GPU."""

from __future__ import annotations

import pytest
import torch

from calprompt import tuners
from calprompt.cli import main
from calprompt.doctor import gpu


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tuners and few steps."""
    monkeypatch.setattr(gpu, "STEPS", 4)
    monkeypatch.setattr(tuners, "available", lambda: ["coop", "maple", "zero-shot"])


def test_a_device_that_agrees() -> None:
    found = list(gpu.verify_device("cpu"))
    names = [f"{tuner}, {dtype}" for tuner in ("coop", "maple") for dtype in ("float32", "bfloat16", "float16")]
    assert [each.name for each in found] == names
    assert {each.status for each in found} == {"ok"}
    assert all("ms a step" in each.value for each in found)


def test_a_device_that_computes_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    train = gpu.train_steps

    def wrong(name: str, backbone: object) -> gpu.Training:
        if getattr(backbone, "autocast", None) is torch.float16:
            raise RuntimeError("no kernel image is available")
        done = train(name, backbone)  # type: ignore[arg-type]
        return gpu.Training([loss * (1 + 0.1 * (backbone is not host)) for loss in done.losses], 1.0)

    host = gpu.load_embedded("pocket")
    monkeypatch.setattr(gpu, "load_embedded", lambda name: host)
    monkeypatch.setattr(gpu, "train_steps", wrong)
    found = list(gpu.verify_device("cpu"))
    assert {each.status for each in found} == {"problem"}
    assert "no kernel image" in found[2].value


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_without_a_gpu_there_is_nothing_to_verify(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--gpu"]) == 0
    assert "there is nothing to verify" in capsys.readouterr().out
