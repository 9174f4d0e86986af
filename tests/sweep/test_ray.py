"""Sweeps on a real Ray cluster: the table is that of a local sweep, whatever is lost on the way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import samples
from calprompt.errors import SettingError
from calprompt.executors.protocol import WorkerResources
from calprompt.executors.ray import RayExecutor
from calprompt.sweep import driver
from calprompt.sweep.driver import run_sweep
from calprompt.sweep.sweep_file import read_sweep
from calprompt.sweep.sweep_plan import plan_sweep
from executors import clusters
from sweep import sweeps


@pytest.fixture
def cluster() -> Any:
    started = clusters.cluster()
    clusters.restore(started)
    return started


def grid(path: Path, **changes: Any) -> Path:
    axes = {"data": [str(samples.feature_file()), str(samples.pictures())], "loss": ["ce", "tcpt"]}
    return sweeps.write(path, axes=axes, seeds=[1, 2], **changes)


def calm_table(file: Path, out: Path) -> bytes:
    run_sweep(plan_sweep(read_sweep(file), out), executor=sweeps.Here())
    return sweeps.table(out)


def visible(out: Path) -> list[str]:
    return [path.name for path in out.rglob("*") if path.name.startswith(".") or "checkpoint" in path.name]


@pytest.mark.long
def test_lost_node_leaves_the_table_unchanged(cluster: Any, tmp_path: Path) -> None:
    settings = {"epochs": 20, "lr": 0.002}
    file, out = grid(tmp_path / "tiny.yaml", settings=settings), tmp_path / "out"
    expected = calm_table(file, tmp_path / "calm")
    running: list[int] = []

    def watch(state: Any, outcome: Any) -> None:
        running.append(len(state.running))
        if state.done and len(state.running) == 2 and cluster.worker_nodes:  # both nodes are at a run
            clusters.lose_node(cluster)

    with RayExecutor(cluster.address) as executor:
        state = run_sweep(plan_sweep(read_sweep(file), out), executor=executor, watch=watch)
    assert (len(state.done), state.failures) == (8, [])
    assert not cluster.worker_nodes, "it was lost in the middle"
    assert executor.retries <= 2, "what the node was at, and what it was about to begin"
    assert max(running) == 2, "what is being worked on is shown"
    assert sweeps.table(out) == expected
    assert not visible(out)


def test_runs_are_sent_back_where_no_folder_is_shared(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because the file says so, and because workers do not see the marker that the driver has written."""
    file = sweeps.write(tmp_path / "tiny.yaml", axes={"loss": ["ce", "tcpt"]}, seeds=[1], send_back=True)
    assert read_sweep(file).send_back
    expected, asked, found = calm_table(file, tmp_path / "calm"), tmp_path / "asked", tmp_path / "found"
    with RayExecutor(cluster.address) as executor:
        run_sweep(plan_sweep(read_sweep(file), asked), executor=executor, send_back=True)
        monkeypatch.setattr("calprompt.sweep.driver.shared_marker", _invisible)
        state = run_sweep(plan_sweep(read_sweep(file), found), executor=executor)
    assert all(outcome.folder is not None and outcome.folder.parent == found for outcome in state.done)
    for out in (asked, found):
        assert sweeps.table(out) == expected
        assert not visible(out)
    kept = Path(os.environ["CALPROMPT_CACHE"]) / driver.KIND
    assert not list(kept.rglob("run.json")), "nothing is left where the work was done"


class _invisible:  # noqa: N801 (stands in for a function)
    """A marker that no worker sees."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> str:
        return str(self.folder / "nowhere" / ".shared-0")

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.long
def test_ctrl_c_and_the_same_command_again(cluster: Any, tmp_path: Path) -> None:
    """The way of the command line, with its own connection to the cluster."""
    settings = {"epochs": 200, "lr": 0.002}
    file = sweeps.write(tmp_path / "tiny.yaml", axes={"loss": ["ce"]}, seeds=[1, 2], settings=settings)
    expected, out = calm_table(file, tmp_path / "calm"), tmp_path / "out"
    command = sweeps.command("sweep", file, "--out", out, "--ray", cluster.address)
    process = subprocess.Popen(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    end = time.monotonic() + 120
    while not list(out.glob("*/checkpoint.safetensors")) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    said, complaints = process.communicate(timeout=120)
    assert process.returncode == 130, said + complaints
    assert re.search(r"to do: 2 runs, \d workers", said), "a node that was just lost may still be counted"
    assert "Traceback" not in complaints
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
    with RayExecutor(cluster.address) as executor:
        state = run_sweep(plan_sweep(read_sweep(file), out), executor=executor)
    assert not state.failures
    assert sweeps.table(out) == expected


def test_workers_in_a_sweep_file(tmp_path: Path) -> None:
    file = sweeps.write(tmp_path / "a.yaml", threads=2, resources={"memory": "2GB"})
    assert read_sweep(file).resources == WorkerResources(cpus=2, memory=2_000_000_000)
    file = sweeps.write(tmp_path / "b.yaml", device="cuda", resources={"cpus": 4})
    assert read_sweep(file).resources == WorkerResources(cpus=4, gpus=1)
    with pytest.raises(SettingError, match=r"b\.yaml: resources: gpus must be a number"):
        read_sweep(sweeps.write(tmp_path / "b.yaml", resources={"gpus": "all"}))
    with pytest.raises(SettingError, match=r"b\.yaml: send_back must be true or false, got 1"):
        read_sweep(sweeps.write(tmp_path / "b.yaml", send_back=1))
    done = sweeps.call("sweep", tmp_path / "a.yaml", "--out", tmp_path / "out", "--ray", "127.0.0.1:1", expected=2)
    assert "no Ray cluster answers at 127.0.0.1:1" in done.stderr
    assert not (tmp_path / "out").exists()
