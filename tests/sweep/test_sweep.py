"""A sweep at work, in this process: what is done, what fails, what is found again, and what is written down."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import samples
from calprompt import files
from calprompt.cli import main
from calprompt.cli.sweep import show_sweep
from calprompt.errors import CalpromptError
from calprompt.executors.protocol import Outcome
from calprompt.files import locked
from calprompt.runs.folder import load_run
from calprompt.runs.resources import Resources
from calprompt.sweep import driver as driver_module
from calprompt.sweep.driver import SweepState, Task, run_sweep
from calprompt.sweep.sweep_file import read_sweep
from calprompt.sweep.sweep_plan import SweepPlan, plan_sweep
from sweep import sweeps

GOOD, BAD = "ce", "ce + 1e30*moments"  # the second diverges


def planned(file: Path, out: Path, **options: Any) -> SweepPlan:
    return plan_sweep(read_sweep(file), out, **options)


def done(file: Path, out: Path, **options: Any) -> SweepState:
    return run_sweep(planned(file, out), executor=sweeps.Here(), store=False, **options)


def journal(out: Path) -> dict[str, Any]:
    return json.loads(next(out.glob("sweep-*.json")).read_text("utf-8"))


def test_a_sweep_is_done_once(tmp_path: Path) -> None:
    file, out = sweeps.write(tmp_path / "tiny.yaml"), tmp_path / "out"
    plan = planned(file, out, workers=2)
    assert (plan.count("missing"), plan.workers, plan.estimate(plan.to_do())) == (4, 2, None)
    seen: list[Outcome | None] = []
    state = done(file, out, watch=lambda state, outcome: seen.append(outcome))
    assert (state.computed, state.failures, len(seen)) == (4, [], 4)
    assert all((outcome.folder / "evaluation.json").is_file() for outcome in seen if outcome and outcome.folder)

    again = planned(file, out)
    assert (again.count("finished"), again.to_do()) == (4, [])
    assert done(file, out).total == 0
    verified = done(file, out, verify=True)
    assert [outcome.reused for outcome in verified.done] == [True] * 4
    note = journal(out)
    assert [(each["runs"], each["computed"], each["left"]) for each in note["passes"]] == [(4, 4, 0), (4, 0, 0)]
    assert note["passes"][0]["estimated_seconds"] is None
    assert len(note["cells"]) == 4


def test_time_is_estimated_from_runs_of_the_same_kind(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done(sweeps.write(tmp_path / "a.yaml", seeds=[1]), out)
    plan = planned(sweeps.write(tmp_path / "b.yaml", seeds=[1, 2, 3]), out, workers=2)
    seconds = [sum(load_run(path.parent).record["timings"].values()) for path in out.glob("*/run.json")]
    assert plan.estimate(plan.to_do()) == pytest.approx(2 * sum(seconds) / 2, rel=0.01)
    assert planned(sweeps.write(tmp_path / "c.yaml", settings={"epochs": 9}), out).planned[0].seconds is None
    for path in out.glob("*/run.json"):
        samples.edit_record(path.parent, lambda record: record["hardware"].update(processor="another"))
    assert planned(tmp_path / "b.yaml", out).planned[1].seconds is None


def test_the_plan_says_what_memory_the_runs_take_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file, out = sweeps.write(tmp_path / "a.yaml", seeds=[1]), tmp_path / "out"
    dry = ["sweep", str(file), "--out", str(out), "--dry-run"]
    assert main(dry) == 0
    assert "memory: unknown, nothing like these runs was measured" in capfd.readouterr().out
    done(file, out)
    for number, path in enumerate(sorted(out.glob("*/run.json"))):
        measured = {"peak_memory": 2_000_000_000 + number, "peak_device_memory": 500_000_000}
        samples.edit_record(path.parent, lambda record, m=measured: record["training"].update(m))
    sweeps.write(file, seeds=[1, 2], settings={"device": "cpu"})
    assert main([*dry, "--workers", "3"]) == 0
    said = capfd.readouterr().out
    assert "to do: 2 runs, 3 workers; estimated time: about" in said
    assert "memory: a run takes up to 2.0 GB, 3 workers up to 6.0 GB" in said
    assert "on a GPU up to 500.0 MB, 1.5 GB together" in said
    assert main(["sweep", "paper/pocket-main", "--dry-run", "--devices", "cuda:0,cuda:1", "--out", str(out)]) == 0
    assert "2 workers (1 on each of cuda:0, cuda:1)" in capfd.readouterr().out
    assert main([*dry, "--devices", "cuda:0", "--ray", "auto"]) == 2
    assert "a Ray cluster hands out GPUs itself" in capfd.readouterr().err


def test_runs_of_a_group_load_the_backbone_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    get = Resources.backbone

    def counted(self: Resources, spec: str, **options: Any) -> Any:
        before = len(self._backbones)
        found = get(self, spec, **options)
        loaded.extend([spec] * (len(self._backbones) - before))
        return found

    monkeypatch.setattr(Resources, "backbone", counted)
    done(sweeps.write(tmp_path / "tiny.yaml"), tmp_path / "out")
    assert len(loaded) == 1


def test_failing_run_stops_no_other_and_is_retried_on_demand(tmp_path: Path) -> None:
    axes = {"loss": [GOOD, BAD], "data": [str(samples.feature_file()), str(tmp_path / "later.safetensors")]}
    file, out = sweeps.write(tmp_path / "tiny.yaml", axes=axes, seeds=[1]), tmp_path / "out"
    state = done(file, out)
    assert (state.computed, len(state.failures)) == (1, 3)
    reasons = [str(outcome.reason) for outcome in state.failures]
    assert sum("there is no data at" in reason for reason in reasons) == 2
    assert sum("finite" in reason for reason in reasons) == 1
    assert len(journal(out)["failures"]) == 3

    plan = planned(file, out)
    assert (plan.count("failed"), plan.count("finished"), plan.to_do()) == (3, 1, [])
    assert {each.reason for each in plan.planned if each.status == "failed"} == set(reasons)
    samples.tensor_file(tmp_path / "later.safetensors")
    retried = done(file, out, retry_failed=True)
    assert (retried.total, retried.computed, len(retried.failures)) == (3, 1, 2)
    assert planned(file, out).count("finished") == 2


def test_a_mistake_in_our_own_code_is_a_failure_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(driver_module, "measure_run", broken)
    state = done(sweeps.write(tmp_path / "tiny.yaml", axes={"loss": ["ce"]}, seeds=[1]), tmp_path / "out")
    assert [outcome.reason for outcome in state.failures] == ["ZeroDivisionError: oops"]


def test_commands_say_the_plan_and_the_failures(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = sweeps.write(tmp_path / "tiny.yaml", axes={"loss": [GOOD, BAD]}, seeds=[1], workers=1)
    out = tmp_path / "out"
    done(file, out)
    assert main(["sweep", str(file), "--out", str(out)]) == 1
    said = capfd.readouterr().out
    assert "tiny: 2 runs in" in said
    assert "1 finished already" in said
    assert "1 failed before" in said
    assert "1 run failed; --retry-failed does them again:\n  ce + 1e30*moments" in said
    assert main(["sweep", str(file), "--out", str(out), "--dry-run", "--retry-failed"]) == 0
    said = capfd.readouterr().out
    assert "to do: 1 run, 1 worker" in said
    assert main(["sweep", str(file), "--workers", "2", "--out", str(out), "--dry-run"]) == 0
    with pytest.raises(SystemExit):
        main(["sweep", str(file), "--workers", "none"])


def test_finished_runs_are_evaluated_on_other_data(tmp_path: Path) -> None:
    other = samples.tensor_file(tmp_path / "shifted.safetensors")
    file, out = sweeps.write(tmp_path / "tiny.yaml", seeds=[1]), tmp_path / "out"
    done(file, out)
    sweeps.write(file, seeds=[1], transfer=[str(other)])
    assert planned(file, out).count("transfer") == 2
    state = done(file, out)
    assert (state.computed, planned(file, out).count("finished")) == (2, 2)
    table = sweeps.table(out).decode().splitlines()
    assert sum(",shifted/base," in line for line in table) == 2 * 2 * 2


def test_a_run_that_another_process_works_on_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = sweeps.write(tmp_path / "tiny.yaml", seeds=[1]), tmp_path / "out"
    done(file, out)
    busy = next(out.glob("*/run.json")).parent
    samples.edit_record(busy, lambda record: record.update(status="running"))
    holder = locked(busy)
    holder.__enter__()
    assert planned(file, out).count("running") == 1
    looks: list[float] = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            samples.edit_record(busy, lambda record: record.update(status="finished"))
            holder.__exit__(None, None, None)

    monkeypatch.setattr(driver_module.time, "sleep", look)
    state = done(file, out)
    assert len(looks) == 2
    assert (state.total, state.computed, state.failures) == (1, 0, [])


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file, out = sweeps.write(tmp_path / "tiny.yaml", seeds=[1]), tmp_path / "out"
    out.write_text("a file")
    with pytest.raises(CalpromptError, match=r"cannot write to the folder .*out"):
        done(file, out)
    assert main(["sweep", str(file), "--out", str(out)]) == 2
    assert f"--out must be a folder, and {out} is a file" in " ".join(capfd.readouterr().err.split())


def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As whoever is not root sees it."""
    file, out = sweeps.write(tmp_path / "tiny.yaml", seeds=[1]), tmp_path / "out"
    out.mkdir()

    def refuse(source: object, target: object) -> None:
        raise PermissionError(13, "Permission denied", str(target))

    monkeypatch.setattr(files.os, "replace", refuse)
    with pytest.raises(CalpromptError, match="cannot write to the folder"):
        done(file, out)
    assert not [path for path in out.iterdir() if not path.name.startswith(".")]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run that could not be written fails with that reason, and the same command does them when there is room."""
    file, out = sweeps.write(tmp_path / "tiny.yaml", seeds=[1]), tmp_path / "out"
    fsync = os.fsync
    calls: list[int] = []

    def full(number: int) -> None:
        calls.append(number)
        if len(calls) > 8:
            raise OSError(28, "No space left on device")
        fsync(number)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        state = done(file, out)
    assert len(state.failures) == 2
    assert all("No space left on device" in str(outcome.reason) for outcome in state.failures)
    assert done(file, out, retry_failed=True).computed == 2
    assert planned(file, out).count("finished") == 2


def test_damaged_runs(tmp_path: Path) -> None:
    """A lost or damaged file is computed again; a damaged record is said, because only its owner knows what it was."""
    file, out = sweeps.write(tmp_path / "tiny.yaml"), tmp_path / "out"
    done(file, out)
    whole = sweeps.table(out)
    lost, damaged, edited, _ = sorted(path.parent for path in out.glob("*/run.json"))
    (lost / "logits.safetensors").unlink()
    (damaged / "logits.safetensors").write_bytes(b"nothing")
    assert planned(file, out).count("interrupted") == 1
    state = done(file, out, verify=True)
    assert state.computed == 2
    assert sum("computed again" in text for outcome in state.done for text in outcome.warnings) == 1
    assert sweeps.table(out) == whole

    (edited / "run.json").write_text("{}")
    plan = planned(file, out)
    assert (plan.count("missing"), len(plan.damaged)) == (1, 1)
    state = done(file, out)
    assert "run.json is damaged" in str(state.failures[0].reason)
    (edited / "run.json").unlink()
    assert done(file, out, retry_failed=True).failures == []
    assert sweeps.table(out) == whole


def test_leftovers_of_a_run_killed_at_its_end_are_cleared(tmp_path: Path) -> None:
    file, out = sweeps.write(tmp_path / "tiny.yaml", axes={"loss": ["ce"]}, seeds=[1]), tmp_path / "out"
    done(file, out)
    rest = next(out.glob("*/run.json")).with_name("checkpoint.safetensors")
    rest.touch()
    assert planned(file, out).count("interrupted") == 1
    assert done(file, out).computed == 0
    assert not rest.exists()


def test_runs_of_earlier_versions_are_found(tmp_path: Path) -> None:
    """Their records have fewer settings."""
    file, out = sweeps.write(tmp_path / "tiny.yaml", axes={"loss": ["ce"]}, seeds=[1]), tmp_path / "out"
    done(file, out)
    samples.edit_record(next(out.glob("*/run.json")).parent, lambda record: record["config"].pop("val_shots"))
    assert planned(file, out).count("finished") == 1
    assert b",missing," not in sweeps.table(out)


def test_a_damaged_journal_is_written_again(tmp_path: Path) -> None:
    file, out = sweeps.write(tmp_path / "tiny.yaml", seeds=[1]), tmp_path / "out"
    done(file, out)
    (out / "sweep-tiny.json").write_text("{}")
    assert planned(file, out).count("finished") == 2
    done(file, out, verify=True)
    assert len(journal(out)["passes"]) == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_bar_on_a_terminal_and_lines_in_a_pipe(
    tmp_path: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1") if terminal else monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "150")
    file = sweeps.write(tmp_path / "tiny.yaml", axes={"loss": [GOOD, BAD]}, seeds=[1])
    cells = read_sweep(file).cells
    state = SweepState(2, estimate=60.0, running=[cells[1].title])
    finished = Outcome(Task(cells[0], "out"), "finished", seconds=1.5, warnings=("look at this",))
    failed = Outcome(Task(cells[1], "out"), "failed", reason="the loss is not finite", seconds=0.5)
    with show_sweep() as watch:
        watch(state, None)
        state.done.append(finished)
        watch(state, finished)
        state.done.append(failed)
        state.running.clear()
        watch(state, failed)
    said = capfd.readouterr().err
    assert "look at this" in said
    assert "the loss is not finite" in said
    if terminal:
        assert "2/2" in said
        assert "1 failed" in said
        assert "runs/h" in said
    else:
        assert said.splitlines()[0].startswith("1 of 2  ce, seed 1  finished, 1.5 s (")
        assert said.splitlines()[-1] == "2 of 2  ce + 1e30*moments, seed 1  failed, 0.5 s: the loss is not finite"
