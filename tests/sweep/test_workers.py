"""Workers are real processes, and so are SIGKILL and Ctrl-C: nothing is lost, nothing is done twice, no bit differs.

`benchmarks/sweep_crashes.py` does the same at many more instants.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

import samples
from calprompt.sweep import LocalExecutor, Outcome, Task, plan_sweep, read_sweep, run_sweep
from calprompt.sweep.expansion import Cell
from calprompt.sweep.local import begin_worker
from sweep import sweeps

SETTINGS = {"epochs": 40, "lr": 0.002}


def children(process: int) -> list[int]:
    """Processes that a process has started and that compute; the one that only tracks resources is left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
            line = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == process and b"spawn_main" in line:
            found.append(int(path.parent.name))
    return found


def wait_until(happens: object, process: subprocess.Popen[str], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not happens():  # type: ignore[operator]
        assert process.poll() is None, "it ended before that"
        assert time.monotonic() < end
        time.sleep(0.01)


def started(*words: object) -> subprocess.Popen[str]:
    command = sweeps.command(*words)
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=sweeps.ENVIRONMENT, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def finished(out: Path) -> int:
    records = [path for path in out.glob("*/run.json")]
    return sum('"status": "finished"' in path.read_text("utf-8") for path in records)


def is_gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="looks for processes in /proc")
def test_a_disturbed_sweep_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    """A worker is killed, the command is interrupted, its successor is killed, and then two finish it together."""
    axes = {"data": [str(samples.feature_file()), str(samples.pictures())], "loss": ["ce", "tcpt"]}
    file = sweeps.write(tmp_path / "tiny.yaml", axes=axes, seeds=[1, 2], settings=SETTINGS, workers=2)
    calm, out = tmp_path / "calm", tmp_path / "out"
    run_sweep(plan_sweep(read_sweep(file), calm), executor=sweeps.Here())
    expected = sweeps.table(calm)
    pause = random.Random(7)

    first = started("sweep", file, "--out", out)
    wait_until(lambda: list(out.glob("*/checkpoint.safetensors")), first)
    victims = children(first.pid)
    assert len(victims) == 2
    os.kill(victims[0], signal.SIGKILL)
    wait_until(lambda: len(children(first.pid)) == 2 and is_gone(victims[0]), first)
    time.sleep(pause.uniform(0, 0.2))
    workers = children(first.pid)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does: to all of its processes
    said, complaints = first.communicate(timeout=60)
    assert first.returncode == 130, complaints
    assert "interrupted; the same command continues" in complaints
    assert "Traceback" not in complaints
    assert all(map(is_gone, workers))
    note = json.loads((out / "sweep-tiny.json").read_text("utf-8"))
    assert note["passes"][0]["left"] == 8 - note["passes"][0]["computed"] > 0

    second = started("sweep", file, "--out", out, "--workers", 1)
    wait_until(lambda: children(second.pid), second)
    workers, before = children(second.pid), finished(out)
    wait_until(lambda: finished(out) > before or second.poll() is not None, second)
    os.kill(second.pid, signal.SIGKILL)
    second.communicate()
    end = time.monotonic() + 20
    while not all(map(is_gone, workers)):  # they follow whoever started them
        assert time.monotonic() < end
        time.sleep(0.05)

    both = [started("sweep", file, "--out", out, "--workers", 1) for _ in range(2)]
    for process in both:
        said, complaints = process.communicate(timeout=240)
        assert process.returncode == 0, said + complaints
    assert finished(out) == 8
    assert sweeps.table(out) == expected
    leftovers = {path.name for path in out.rglob("*") if path.name.startswith(".") or "checkpoint" in path.name}
    assert not leftovers


def deadly(task: Task) -> Outcome:
    """Kills its process, unless a file says that it did so before as often as it should."""
    marks = Path(task.out) / task.cell.key
    lives = int(task.cell.settings["lives"])
    count = len(list(Path(task.out).glob(f"{task.cell.key}-*")))
    marks.with_name(f"{task.cell.key}-{count}").touch()
    if count < lives:
        os.kill(os.getpid(), signal.SIGKILL)
    return Outcome(task, "finished", reason=os.environ["OMP_NUM_THREADS"])


class Named(Cell):
    """A cell that is told apart by its lives."""

    key = property(lambda self: f"lives{self.settings['lives']}")  # type: ignore[assignment]


def test_a_run_that_kills_every_worker_fails_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    )
    from sweep.test_workers import Named as Cells
    from sweep.test_workers import deadly as work

    tasks = [Task(Cells({"lives": lives}), str(tmp_path)) for lives in (0, 1, 9)]
    starts: list[str] = []
    executor = LocalExecutor(2, threads=3, kills=1, on_start=lambda task: starts.append(task.cell.key))
    outcomes = {outcome.task.cell.key: outcome for outcome in executor.map([tasks], work)}
    assert {key: outcome.status for key, outcome in outcomes.items()} == {
        "lives0": "finished",
        "lives1": "finished",
        "lives9": "failed",
    }
    assert outcomes["lives9"].reason == "its worker was killed 2 times; is there enough memory?"
    assert outcomes["lives0"].reason == "3"  # threads
    assert sorted(starts) == ["lives0", "lives1", "lives1", "lives9", "lives9"]
    assert begin_worker.__doc__
