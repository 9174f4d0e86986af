"""What executors share, without a cluster: cutting groups, resources of a worker, folders that others may not see."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calprompt.errors import CalpromptError, NotFoundError, SettingError
from calprompt.executors import protocol
from calprompt.executors import ray as ray_module
from calprompt.executors.local import LocalExecutor
from calprompt.executors.protocol import (
    WorkerResources,
    is_shared,
    pack_folder,
    parse_resources,
    shared_marker,
    unpack_folder,
)
from calprompt.executors.ray import RayExecutor, cut_groups
from executors import chores
from executors.chores import Chore


@given(st.lists(st.lists(st.integers(), max_size=30), max_size=8), st.integers(1, 20))
def test_cut_groups_keep_their_tasks_and_order(groups: list[list[int]], pieces: int) -> None:
    found = cut_groups(groups, pieces)  # type: ignore[type-var]
    assert [task for group in found for task in group] == [task for group in groups for task in group]
    assert all(found)
    total = sum(map(len, groups))
    assert len(found) <= pieces + len(groups)
    assert all(len(group) <= -(-total // pieces) for group in found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"cpu": 1}, "cpus"),
        ({"cpus": 0}, "cpus must be above 0, got 0"),
        ({"cpus": "many"}, "cpus must be a number, got 'many'"),
        ({"cpus": True}, "cpus must be a number, got True"),
        ({"gpus": 1.5}, "gpus must be a whole number, or a fraction below 1; got 1.5"),
        ({"gpus": -1}, "gpus must be a whole number"),
        ({"memory": "much"}, "memory must be a size such as 2GB or 500MB, got 'much'"),
        ({"memory": -5}, "memory must be a size"),
    ],
)
def test_resources_that_make_no_sense(content: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        parse_resources(content, "mine.yaml: resources", WorkerResources())
    assert "mine.yaml: resources" in str(caught.value)


def test_resources_in_sweep_files() -> None:
    usual = WorkerResources(cpus=2)
    assert parse_resources({}, "here", usual) == usual
    assert parse_resources({"gpus": 0.5, "memory": "2GB"}, "here", usual) == WorkerResources(2, 0.5, 2_000_000_000)


def test_workers_are_spread_over_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sees one of those that the driver sees, also one that replaces a worker that was killed."""
    paths = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    folder = str(tmp_path)
    tasks = [Chore("0", folder, kills=1), Chore("1", folder), Chore("2", folder, seconds=60.0, until="1-0.done")]
    local = LocalExecutor(workers=2, devices=("cuda:0", "cuda:2"))
    seen = {outcome.task.key: outcome.result[3] for outcome in local.map([tasks[:2], tasks[2:]], chores.do)}
    assert seen == {"0": "4", "1": "4", "2": "7"}


def test_nothing_imports_ray_before_it_is_used() -> None:
    script = "import sys, calprompt.executors.ray, calprompt.cli.app; assert not {'ray', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_missing_ray_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingError, match=r"pip install 'calprompt\[ray\]'"):
        RayExecutor("auto").connect()


@pytest.mark.parametrize("address", ["ray://host:10001", "host", "host:port", ""])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(SettingError, match=r"must be auto, local or HOST:PORT"):
        RayExecutor(address)


def test_an_unreachable_cluster() -> None:
    """A closed port is said at once; a port where something else listens, after the time limit."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=lambda: [server.accept() for _ in range(2)], daemon=True).start()
        begin = time.monotonic()
        with pytest.raises(NotFoundError, match=f"no Ray cluster answers at 127.0.0.1:{port} within 3 seconds"):
            ray_module._try(f"127.0.0.1:{port}", 3)
        assert time.monotonic() - begin < 60
    with pytest.raises(NotFoundError, match=f"no Ray cluster answers at 127.0.0.1:{port} .*; is it running"):
        ray_module._try(f"127.0.0.1:{port}", 3)


def test_shared_and_unshared_folders_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PATIENCE", 0.0)
    with shared_marker(tmp_path) as marker:
        assert is_shared(marker)
        assert not is_shared(str(tmp_path / "elsewhere" / ".shared-1"))
    assert not list(tmp_path.iterdir())


def test_packed_folder_replaces_the_old_one_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there in full or not at all, in place of what was there; locks and half-written files stay behind."""
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("run.json", "transfer/other/logits.safetensors", ".lock", ".run.json.12.tmp"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    files = pack_folder(source)
    assert sorted(files) == ["run.json", "transfer/other/logits.safetensors"]
    target.mkdir()
    (target / "old").touch()
    unpack_folder(files, target)
    assert pack_folder(target) == files

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        unpack_folder({"run.json": b"new"}, target)
    assert pack_folder(target) == files
    monkeypatch.undo()
    with pytest.raises(CalpromptError, match="outside of its folder"):
        unpack_folder({"../outside": b""}, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]
