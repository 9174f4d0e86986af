"""A run killed at any moment goes on to the bits of one that never was.

Processes are real and so is SIGKILL: forked ones that die at a chosen write, and a command killed from outside.
"""

import os
import signal
import time
from pathlib import Path

import pytest

import samples
from calprompt import files
from calprompt.cli.app import main
from calprompt.runs.config import RunConfig
from calprompt.runs.execute import read_tensor_file, run
from calprompt.runs.folder import load_run

KEPT = ("prompts.safetensors", "metrics.json", "history.jsonl", "logits.safetensors")
WRITES = 11  # of a run of three epochs: its record, 3 times (history, checkpoint), prompts, logits, metrics, its record


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in KEPT}


def killed(config: RunConfig, out: Path, at: int, half: bool) -> None:
    def work() -> None:
        files.os.replace = samples.dying(at, half)  # type: ignore[assignment]
        run(config, out)

    assert samples.exit_code(samples.forked(work)) == -signal.SIGKILL


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return contents(run(samples.config(), tmp_path_factory.mktemp("whole")).folder)


@pytest.mark.parametrize(("at", "half"), [*((at, True) for at in range(1, WRITES + 1)), (2, False), (WRITES, False)])
def test_killed_at_any_write(tmp_path: Path, whole: dict[str, bytes], at: int, half: bool) -> None:
    killed(samples.config(), tmp_path, at, half)
    done = run(samples.config(), tmp_path)
    assert done.reused == (at == WRITES and not half)
    assert contents(done.folder) == whole
    assert sorted(path.name for path in done.folder.iterdir()) == sorted([*KEPT, "run.json"])


def test_crash_matrix_covers_every_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append(paths), replace(*paths)))
    run(samples.config(), tmp_path)
    assert len(calls) == WRITES


def test_killed_again_and_again(tmp_path: Path) -> None:
    """One epoch a life, with a tuner that sees pixels and carries a state of its own."""
    config = samples.config(samples.pictures(), tuner="promptsrc", options={}, epochs=4)
    for epoch in (1, 2, 3):
        killed(config, tmp_path, at=4, half=True)  # record, history, checkpoint, then a half-written history
        assert read_tensor_file(next(tmp_path.glob("*/checkpoint.safetensors")))[1]["epoch"] == epoch
    told: list[int] = []
    done = run(config, tmp_path, progress=lambda what, n, *_: told.append(n) if what == "training" else None)
    assert told == [3, 4]
    assert done.record["resumed_after_epoch"] == 3
    assert contents(done.folder) == contents(run(config, tmp_path / "whole").folder)


def test_command_killed_from_outside(tmp_path: Path) -> None:
    config = samples.config(epochs=100, lr=0.002)
    words = ["train", "--backbone", config.backbone, "--data", config.data, "--out", str(tmp_path), "--quiet"]
    words += ["--set", "context=2", "--shots", "4", "--views", "2", "--epochs", "100", "--batch-size", "8"]
    child = samples.forked(lambda: main(words))
    end = time.monotonic() + 60
    while not list(tmp_path.glob("*/checkpoint.safetensors")) and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    assert samples.exit_code(child) == -signal.SIGKILL
    folder = next(tmp_path.iterdir())
    assert load_run(folder).status == "interrupted"
    before = len(load_run(folder).history())
    assert 0 < before < 100
    epochs: list[int] = []
    done = run(config, tmp_path, progress=lambda what, n, *_: epochs.append(n) if what == "training" else None)
    assert done.folder == folder
    assert epochs[0] in (before, before - 1)  # the history may be one ahead
    assert contents(folder) == contents(run(config, tmp_path / "whole").folder)
