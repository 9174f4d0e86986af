"""Workers are real processes, and so are SIGKILL and Ctrl-C: nothing is lost, nothing is done twice, no bit differs.

`benchmarks/sweep_crashes.py` does the same at many more instants.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import samples
from calprompt.executors.local import LocalExecutor
from calprompt.sweep.driver import Task, run_sweep
from calprompt.sweep.sweep_file import read_sweep
from calprompt.sweep.sweep_plan import plan_sweep
from sweep import deadly, sweeps

SETTINGS = {"epochs": 20, "lr": 0.004}


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
        command,
        env=sweeps.ENVIRONMENT,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored, if the tests run in the background
    )


def finished(out: Path) -> int:
    return sum('"status": "finished"' in path.read_text("utf-8") for path in out.glob("*/run.json"))


def is_gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def undisturbed(file: Path, out: Path) -> bytes:
    """The table of a sweep that was run in this process."""
    run_sweep(plan_sweep(read_sweep(file), out), executor=sweeps.Here())
    return sweeps.table(out)


def interrupt(process: subprocess.Popen[str]) -> None:
    """As Ctrl-C in a terminal does: all processes of a command are told, and all end."""
    (worker,) = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    _, complaints = process.communicate(timeout=120)
    assert process.returncode == 130, complaints
    assert "interrupted; run the same command to resume" in complaints
    assert "Traceback" not in complaints
    assert is_gone(worker)


NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="looks for processes in /proc")


@NEEDS_PROC
def test_an_interrupted_sweep_resumes_to_the_same_table(tmp_path: Path) -> None:
    axes = {"loss": ["ce", "tcpt"]}
    file = sweeps.write(tmp_path / "tiny.yaml", axes=axes, seeds=[1], settings=SETTINGS, workers=1)
    out = tmp_path / "out"
    process = started("sweep", file, "--out", out)
    wait_until(lambda: list(out.glob("*/checkpoint.safetensors")), process)
    interrupt(process)
    note = json.loads((out / "sweep-tiny.json").read_text("utf-8"))["passes"][0]
    assert note["left"] == 2 - note["computed"] > 0
    assert undisturbed(file, out) == undisturbed(file, tmp_path / "calm")
    assert finished(out) == 2


@pytest.mark.long
@NEEDS_PROC
def test_a_disturbed_sweep_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    """A worker is killed, the command interrupted; two at once go on, of which one is killed and the other finishes."""
    axes = {"data": [str(samples.feature_file()), str(samples.pictures())], "loss": ["ce", "tcpt"]}
    file = sweeps.write(tmp_path / "tiny.yaml", axes=axes, seeds=[1, 2], settings=SETTINGS, workers=1)
    out, expected = tmp_path / "out", undisturbed(file, tmp_path / "calm")
    first = started("sweep", file, "--out", out)
    wait_until(lambda: list(out.glob("*/checkpoint.safetensors")), first)
    (victim,) = children(first.pid)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: is_gone(victim) and children(first.pid), first)
    interrupt(first)
    note = json.loads((out / "sweep-tiny.json").read_text("utf-8"))["passes"][0]
    assert note["left"] == 8 - note["computed"] > 0
    before = finished(out)

    second = started("sweep", file, "--out", out)
    wait_until(lambda: children(second.pid), second)
    third = started("sweep", file, "--out", out)
    wait_until(lambda: finished(out) > before and list(out.glob("*/checkpoint.safetensors")), second)
    (worker,) = children(second.pid)
    os.kill(second.pid, signal.SIGKILL)
    second.communicate()
    said, complaints = third.communicate(timeout=240)
    assert third.returncode == 0, said + complaints
    assert finished(out) == 8
    assert sweeps.table(out) == expected
    assert not [path for path in out.rglob("*") if path.name.startswith(".") or "checkpoint" in path.name]
    end = time.monotonic() + 60
    while not is_gone(worker):  # it follows whoever started it
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_run_that_kills_every_worker_fails_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    tasks = [Task(deadly.Lives({"lives": lives}), str(tmp_path)) for lives in (0, 1, 9)]
    starts: list[str] = []
    executor = LocalExecutor(2, threads=3, kills=1, on_start=lambda task: starts.append(task.cell.key))
    outcomes = {outcome.task.cell.key: outcome for outcome in executor.map([tasks], deadly.work)}
    assert {key: outcome.status for key, outcome in outcomes.items()} == {
        "lives0": "finished",
        "lives1": "finished",
        "lives9": "failed",
    }
    assert outcomes["lives9"].reason == "its worker was killed 2 times; is there enough memory?"
    assert outcomes["lives0"].reason == "3"  # threads
    assert sorted(starts) == ["lives0", "lives1", "lives1", "lives9", "lives9"]
