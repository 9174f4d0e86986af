"""Diagnosed steps and what training takes: kept in the run folder, and nowhere if nobody asked."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import samples
from calprompt import files, hardware
from calprompt.diagnostics import RATIOS, spread
from calprompt.errors import DamagedFileError
from calprompt.hardware import Stopwatch
from calprompt.runs.config import RunConfig
from calprompt.runs.execute import run
from calprompt.runs.folder import STEPS, load_run, rows_bytes

KEPT = ("prompts.safetensors", "metrics.json", "history.jsonl", "logits.safetensors", "steps.csv")
WRITES = 14  # of three epochs: the record, 3 times (history, steps, checkpoint), prompts, logits, metrics, the record


def looking(every: int = 1, **settings: object) -> RunConfig:
    config = samples.config(**settings)  # type: ignore[arg-type]
    return replace(config, training=replace(config.training, diagnose_every=every))


def test_every_step_has_a_row(tmp_path: Path) -> None:
    done = run(looking(), tmp_path)
    steps, history = done.steps(), done.history()
    each = len(steps) // 3
    assert [(row["epoch"], row["step"]) for row in steps] == [(e, s) for e in (1, 2, 3) for s in range(1, each + 1)]
    for row in history:
        own = [step for step in steps if step["epoch"] == row["epoch"]]
        assert row["rho_margin"] == pytest.approx(sum(step["rho_margin"] for step in own) / len(own))
        assert {name: row[name] for name in spread(own)} == spread(own)
        assert row["rho_mom_q10"] <= row["rho_mom_median"] <= row["rho_mom_q90"]
    assert {f"{ratio}_median" for ratio in RATIOS} <= set(history[0])
    assert set(done.record["files"]) == set(KEPT)
    assert rows_bytes(STEPS, steps) == (done.folder / "steps.csv").read_bytes(), "numbers are read as they were"


def test_some_steps(tmp_path: Path) -> None:
    steps = run(looking(), tmp_path).steps()
    some = run(looking(every=2), tmp_path).steps()
    assert some == steps[::2]


def test_a_run_without_has_none(tmp_path: Path) -> None:
    done, seen = run(samples.config(), tmp_path), run(looking(), tmp_path)
    assert done.steps() == []
    assert not (done.folder / "steps.csv").exists()
    assert set(done.history()[0]) == {"epoch", "lr", "loss", "accuracy", "ce", "margin", "moments"}
    assert (done.folder / "prompts.safetensors").read_bytes() == (seen.folder / "prompts.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = run(looking(), tmp_path_factory.mktemp("whole")).folder
    return {name: (folder / name).read_bytes() for name in KEPT}


@pytest.mark.parametrize("at", range(2, WRITES + 1))
def test_killed_at_any_write(tmp_path: Path, whole: dict[str, bytes], at: int) -> None:
    child = os.fork()
    if child == 0:
        files.os.replace = samples.dying(at, True)  # type: ignore[attr-defined]
        try:
            run(looking(), tmp_path)
        finally:
            os._exit(1)
    assert samples.exit_code(child) == -signal.SIGKILL
    done = run(looking(), tmp_path)
    assert {name: (done.folder / name).read_bytes() for name in KEPT} == whole
    assert sorted(path.name for path in done.folder.iterdir()) == sorted([*KEPT, "run.json"])


def test_lost_steps_begin_training_again(tmp_path: Path, whole: dict[str, bytes]) -> None:
    child = os.fork()
    if child == 0:
        files.os.replace = samples.dying(8, False)  # type: ignore[attr-defined]
        try:
            run(looking(), tmp_path)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    place = next(tmp_path.glob("*/steps.csv"))
    place.write_bytes(place.read_bytes().replace(b"1,1,", b"1,1,9", 1))
    done = run(looking(), tmp_path)
    assert done.record["resumed_after_epoch"] == 0
    assert (done.folder / "steps.csv").read_bytes() == whole["steps.csv"]


def test_damage_is_noticed_and_repaired(tmp_path: Path) -> None:
    folder = run(looking(), tmp_path).folder
    data = (folder / "steps.csv").read_bytes()
    (folder / "steps.csv").write_bytes(data[:-3])
    with pytest.raises(DamagedFileError, match=r"steps\.csv is damaged"):
        load_run(folder).steps()
    with pytest.warns(UserWarning, match=r"steps\.csv is damaged .* it is computed again"):
        run(looking(), tmp_path)
    assert (folder / "steps.csv").read_bytes() == data


def test_a_run_from_before_there_was_the_file_is_still_finished(tmp_path: Path) -> None:
    folder = run(looking(), tmp_path).folder
    (folder / "steps.csv").unlink()
    samples.edit_record(folder, lambda record: None)  # written anew, with the files that are there
    again = run(looking(), tmp_path)
    assert again.reused
    assert again.steps() == []


def test_what_training_took(tmp_path: Path) -> None:
    record = json.loads((run(samples.config(), tmp_path).folder / "run.json").read_text())
    training = record["training"]
    assert (training["epochs"], training["steps"] % 3) == (3, 0)
    for kind in ("step_seconds", "epoch_seconds"):
        assert 0 < training[kind]["q10"] <= training[kind]["median"] <= training[kind]["q90"]
    assert training["epoch_seconds"]["median"] >= training["step_seconds"]["median"]
    assert 10**7 < training["peak_memory"] <= record["peak_memory"]
    assert training["peak_device_memory"] is None, "a CPU has no memory of its own"


def test_a_stopwatch_measures_what_is_between(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 10.0, 11.0, 14.0, 14.5, 20.0, 22.0, 22.0])
    monkeypatch.setattr("calprompt.hardware.time.perf_counter", lambda: next(now))
    stopwatch = Stopwatch()
    for steps in (2, 1):
        stopwatch.begin_epoch()
        for _ in range(steps):
            stopwatch.end_step()
        stopwatch.end_epoch()
    record = stopwatch.record()
    assert (record["steps"], record["epochs"]) == (3, 2)
    assert record["step_seconds"] == {"median": 2.0, "q10": 1.2, "q90": 2.8}
    assert record["epoch_seconds"] == {"median": 3.25, "q10": 2.25, "q90": 4.25}


def test_the_memory_of_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: asked.append(("reset", device)))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: asked.append(("peak", device)) or 2048)
    hardware.reset_peak_memory("cuda:1")
    assert hardware.peak_device_memory("cuda:1") == 2048
    assert asked == [("reset", "cuda:1"), ("peak", "cuda:1")]
    assert hardware.peak_device_memory("cpu") is None
