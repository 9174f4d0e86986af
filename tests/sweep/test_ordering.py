"""The order of runs: what shares a backbone and a dataset goes to one worker, and no worker is idle for that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from calprompt.sweep.driver import Task, arrange, group_key
from calprompt.sweep.expansion import Cell


def item(data: str, seed: int = 1, **settings: object) -> Task:
    return Task(Cell({"backbone": "pocket", "data": data, "seed": seed, **settings}), "runs")


def test_runs_on_the_same_data_are_a_group_and_seeds_stay_together() -> None:
    items = [item(data, seed, loss=loss) for loss in ("ce", "tcpt") for seed in (1, 2) for data in ("a", "b", "c")]
    groups = arrange(items, workers=2)
    assert [len(group) for group in groups] == [4, 4, 4]
    for group in groups:
        assert len({group_key(each.cell) for each in group}) == 1
        assert [each.cell.settings["seed"] for each in group] == [1, 1, 2, 2]


def test_another_backbone_or_device_is_another_group() -> None:
    items = [item("a"), item("a", dtype="float16"), item("a", device="cuda"), item("a", seed=2)]
    assert [len(group) for group in arrange(items, workers=1)] == [2, 1, 1]


@given(sizes=st.lists(st.integers(1, 9), max_size=5), workers=st.integers(1, 8))
def test_groups_are_split_for_idle_workers(sizes: list[int], workers: int) -> None:
    items = [item(f"d{number}", seed) for number, size in enumerate(sizes) for seed in range(size)]
    groups = arrange(items, workers)
    assert sorted(each.cell.key for group in groups for each in group) == sorted(each.cell.key for each in items)
    assert len(groups) == max(len(sizes), min(workers, len(items)))
    assert [len(group) for group in groups] == sorted(map(len, groups), reverse=True)
