"""A real Ray cluster of several machines' processes: outcomes as they come, lost workers and machines, refusals."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from calprompt.errors import CalpromptError, NotFoundError
from calprompt.executors import ray as ray_module
from calprompt.executors.protocol import WorkerResources
from calprompt.executors.ray import RayExecutor
from executors import chores, clusters
from executors.chores import Chore


@pytest.fixture
def cluster() -> Any:
    started = clusters.cluster()
    clusters.restore(started)
    return started


def executor(cluster: Any, **options: Any) -> RayExecutor:
    return RayExecutor(cluster.address, **options)


def test_outcomes_come_one_by_one_from_all_nodes(cluster: Any, tmp_path: Path) -> None:
    """With the driver's folder and threads in every worker, whatever Ray makes of the CPUs of a task."""
    tasks = [Chore(f"a{number}", str(tmp_path), seconds=0.8) for number in range(8)]
    begun: list[str] = []
    attempts: list[int] = []
    with executor(cluster, threads=3, on_start=lambda task: begun.append(task.key)) as ray:
        assert ray.connect() == 2
        outcomes = []
        for outcome in ray.map([tasks[:7], tasks[7:]], chores.do):
            outcomes.append(outcome)
            attempts.append(sum(task.attempts() for task in tasks))
    assert sorted(outcome.task.key for outcome in outcomes) == [task.key for task in tasks] == sorted(begun)
    assert {outcome.result[:2] for outcome in outcomes} == {("3", os.getcwd())}
    assert len({outcome.result[2] for outcome in outcomes}) == 2, "both nodes had something to do"
    assert attempts[0] < len(tasks), "an outcome does not wait for the rest of its group"


def test_a_task_that_kills_its_workers_fails_and_stops_nothing(cluster: Any, tmp_path: Path) -> None:
    tasks = [Chore("good", str(tmp_path)), Chore("once", str(tmp_path), kills=1), Chore("deadly", str(tmp_path), 9)]
    tasks += [Chore("wrong", str(tmp_path), fails=True), Chore("last", str(tmp_path))]
    with executor(cluster, max_retries=1, workers=1) as ray:
        outcomes = {outcome.task.key: outcome for outcome in ray.map([tasks], chores.do)}
        assert ray.retries == 3
    statuses = {key: outcome.status for key, outcome in outcomes.items()}
    assert statuses == {
        "good": "finished",
        "once": "finished",
        "deadly": "failed",
        "wrong": "failed",
        "last": "finished",
    }
    assert str(outcomes["deadly"].reason).startswith("its worker was lost 2 times")
    assert outcomes["wrong"].reason == "ZeroDivisionError: nothing to share"
    assert {task.key: task.attempts() for task in tasks} == {"good": 1, "once": 2, "deadly": 2, "wrong": 1, "last": 1}


@pytest.mark.long
def test_lost_node_repeats_only_its_own_task(cluster: Any, tmp_path: Path) -> None:
    tasks = [Chore(f"b{number}", str(tmp_path), seconds=1.5) for number in range(6)]
    outcomes: list[Any] = []
    lost = False
    with executor(cluster) as ray:
        for outcome in ray.map([tasks], chores.do):
            outcomes.append(outcome)
            if not lost and len({each.result[2] for each in outcomes}) == 2:
                time.sleep(0.5)  # the next ones are under way
                clusters.lose_node(cluster)
                lost = True
    assert ray.retries == 1
    assert sorted(outcome.task.key for outcome in outcomes) == sorted(task.key for task in tasks)
    assert {outcome.status for outcome in outcomes} == {"finished"}
    assert sum(task.attempts() for task in tasks) <= len(tasks) + 1, "what was finished is not done again"


def test_closing_the_outcomes_stops_the_work(cluster: Any, tmp_path: Path) -> None:
    tasks = [Chore(f"c{number}", str(tmp_path), seconds=0.5) for number in range(80)]
    with executor(cluster) as ray:
        outcomes = ray.map([tasks], chores.do)
        next(outcomes)
        begin = time.monotonic()
        outcomes.close()
        assert time.monotonic() - begin < 15, "the 20 seconds that all tasks take are not waited for"
        begun = sum(task.attempts() for task in tasks)
        time.sleep(1.2)
        assert sum(task.attempts() for task in tasks) == begun < 40


def test_few_groups_are_under_way_at_a_time(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flight: list[int] = []
    begin = ray_module._Flight.begin

    def counted(self: Any, tasks: list[Any]) -> None:
        begin(self, tasks)
        flight.append(len(self.groups))

    monkeypatch.setattr(ray_module._Flight, "begin", counted)
    groups = [[Chore(f"d{group}x{number}", str(tmp_path)) for number in range(3)] for group in range(30)]
    with executor(cluster) as ray:
        room = ray.connect()
        assert sum(outcome.is_finished for outcome in ray.map(groups, chores.do)) == 90
    assert max(flight) <= 2 * room < len(groups)


def test_workers_with_other_versions_are_refused(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ray_module.describe_driver(1)
    other = {**real, "versions": {**real["versions"], "calprompt": "99.0", "Python": "2.7"}}
    monkeypatch.setattr(ray_module, "describe_driver", lambda threads: other)
    with executor(cluster) as ray, pytest.raises(CalpromptError, match=r"Python 3\.\d+ instead of 2\.7 and calprompt"):
        list(ray.map([[Chore("e", str(tmp_path))]], chores.do))
    assert not list(tmp_path.iterdir())


def test_workers_share_a_gpu_by_fractions(cluster: Any, tmp_path: Path) -> None:
    tasks = [Chore(f"g{number}", str(tmp_path), seconds=0.5) for number in range(6)]
    with executor(cluster, resources=WorkerResources(cpus=0.5, gpus=0.5)) as ray:
        assert ray.connect() == 2, "one machine has a GPU, and two workers share it"
        assert {outcome.result[3] for outcome in ray.map([tasks], chores.do)} == {"0"}


def test_impossible_resources_are_refused_immediately(cluster: Any) -> None:
    with pytest.raises(CalpromptError, match="no machine of the Ray cluster has what a worker needs: 1 CPU, 2 GPU"):
        executor(cluster, resources=WorkerResources(gpus=2)).connect()


def test_another_address_is_refused_once_connected(cluster: Any) -> None:
    """Not quietly replaced by the cluster that is there."""
    with pytest.raises(NotFoundError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 "):
        RayExecutor("127.0.0.1:1").connect()
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(CalpromptError, match=f"this process is connected to the one at {cluster.address}"):
            RayExecutor(address).connect()
    assert RayExecutor(f"localhost:{cluster.address.rpartition(':')[2]}").connect(), "another name of the same cluster"
