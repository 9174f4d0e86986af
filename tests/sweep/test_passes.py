"""Runs of a sweep that are trained in one pass: which they are, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calprompt.files import locked
from calprompt.runs import together
from calprompt.side_by_side import train_side_by_side
from calprompt.sweep import plan_sweep, read_sweep, run_sweep
from calprompt.sweep import work as work_module
from calprompt.sweep.executors import Task
from calprompt.sweep.expansion import Cell
from calprompt.sweep.passes import MOST, put_side_by_side
from sweep import sweeps


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs were trained in each pass of several."""
    found: list[int] = []

    def counted(jobs: Sequence[Any], **options: Any) -> Any:
        found.append(len(jobs))
        return train_side_by_side(jobs, **options)

    monkeypatch.setattr(together, "train_side_by_side", counted)
    return found


def task(**settings: Any) -> Task:
    return Task(Cell({"backbone": "pocket", "data": "photos", **settings}), "out")


SETTINGS = st.fixed_dictionaries(
    {
        "seed": st.integers(1, 3),
        "loss": st.sampled_from(["ce", "tcpt"]),
        "lr": st.sampled_from([0.1, 0.2]),
        "tuner": st.sampled_from(["coop", "kgcoop"]),
        "shots": st.sampled_from([4, 16]),
        "diagnose_every": st.sampled_from([0, 1]),
    }
)


@given(st.lists(st.lists(SETTINGS, max_size=9), max_size=3), st.sampled_from([None, 1, 2, 5]))
def test_every_task_stays_in_its_group_and_has_fitting_companions(
    groups: list[list[dict[str, Any]]], most: int | None
) -> None:
    given_tasks = [[task(**settings) for settings in group] for group in groups]
    found = put_side_by_side(given_tasks, most)
    for before, after in zip(given_tasks, found, strict=True):
        assert sorted(each.key for each in after) == sorted(each.key for each in before)
        for place, each in enumerate(after):
            others = after[place + 1 : place + 1 + len(each.beside)]
            assert [other.cell for other in others] == list(each.beside), "they come right after it"
            assert not any(other.beside for other in others)
            assert all(other.follows for other in others)
            assert len(each.beside) < (most or MOST)
            assert each.exact == (most is None)
            for cell in each.beside:
                differing = {name for name, value in cell.settings.items() if value != each.cell.settings[name]}
                assert differing <= {"seed", "loss", "lr"}
                assert not cell.settings["diagnose_every"]


def test_runs_that_are_only_looked_at_again_are_not_trained_together() -> None:
    tasks = [Task(task(seed=seed).cell, "out", verify=True) for seed in (1, 2)]
    assert [each.beside for each in put_side_by_side([tasks], None)[0]] == [(), ()]


@pytest.mark.parametrize(
    ("most", "expected"), [(None, [8]), (5, [5, 3]), (2, [2, 2, 2, 2]), (1, [])], ids=["usual", "5", "2", "1"]
)
def test_the_table_is_that_of_one_run_after_another(
    most: int | None, expected: list[int], tmp_path: Path, passes: list[int]
) -> None:
    file = sweeps.write(tmp_path / "tiny.yaml", axes={"loss": ["ce", "tcpt", "mbls", "zs_norm"]}, side_by_side=most)
    state = run_sweep(plan_sweep(read_sweep(file), tmp_path / "out", workers=1), executor=sweeps.Here(), store=False)
    assert passes == expected
    assert (state.computed, len(state.failures)) == (8, 0)
    alone = sweeps.write(tmp_path / "alone.yaml", axes={"loss": ["ce", "tcpt", "mbls", "zs_norm"]}, side_by_side=1)
    run_sweep(plan_sweep(read_sweep(alone), tmp_path / "alone", workers=1), executor=sweeps.Here(), store=False)
    if most is None:
        assert sweeps.table(tmp_path / "out") == sweeps.table(tmp_path / "alone")


def test_tuners_that_cannot_share_steps_are_trained_one_by_one(tmp_path: Path, passes: list[int]) -> None:
    settings = {"options.context": None, "loss": "ce"}
    file = sweeps.write(tmp_path / "tiny.yaml", axes={"tuner": ["cocoop", "coop"]}, settings=settings)
    state = run_sweep(plan_sweep(read_sweep(file), tmp_path / "out", workers=1), executor=sweeps.Here(), store=False)
    assert not state.failures
    assert passes == [2], "two seeds of coop"


def test_a_large_backbone_shares_steps_only_on_demand(
    tmp_path: Path, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calprompt.clip.backbone.SMALL", 0)
    for number, most in enumerate((None, 4)):
        file = sweeps.write(tmp_path / f"{number}.yaml", side_by_side=most)
        work_module._loaded.clear()
        run_sweep(plan_sweep(read_sweep(file), tmp_path / str(number), workers=1), executor=sweeps.Here(), store=False)
        assert passes == [4] * number


def test_one_that_fails_is_listed_once_and_the_others_are_done(tmp_path: Path, passes: list[int]) -> None:
    bad = "ce + 1e30*moments"
    file, out = sweeps.write(tmp_path / "tiny.yaml", axes={"loss": ["ce", bad]}), tmp_path / "out"
    state = run_sweep(plan_sweep(read_sweep(file), out, workers=1), executor=sweeps.Here(), store=False)
    assert passes == [4], "and none of them alone afterwards"
    assert (state.computed, len(state.failures)) == (2, 2)
    assert all("not finite" in str(failure.reason) for failure in state.failures)
    again = plan_sweep(read_sweep(file), out)
    assert (again.count("finished"), again.count("failed")) == (2, 2)


def test_one_that_another_process_works_on_is_waited_for(
    tmp_path: Path, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not hold up the others, and is done when it is free."""
    file, out = sweeps.write(tmp_path / "tiny.yaml"), tmp_path / "out"
    run_sweep(plan_sweep(read_sweep(file), tmp_path / "whole", workers=1), executor=sweeps.Here(), store=False)
    folder = out / sorted(path.name for path in (tmp_path / "whole").iterdir() if path.is_dir())[1]
    folder.mkdir(parents=True)
    passes.clear()
    with locked(folder):
        looks = iter([True, False])
        monkeypatch.setattr("calprompt.sweep.driver.is_locked", lambda _: next(looks))
        monkeypatch.setattr("calprompt.sweep.driver.LOOK", 0.0)
        executor = sweeps.Here()
        plan = plan_sweep(read_sweep(file), out)
        groups = put_side_by_side([[Task(each.cell, str(out), store=False) for each in plan.planned]], None)
        statuses = [outcome.status for outcome in executor.map(groups, work_module.work)]
    assert sorted(statuses) == ["busy", "finished", "finished", "finished"]
    assert passes == [3]
    state = run_sweep(plan_sweep(read_sweep(file), out, workers=1), executor=sweeps.Here(), store=False)
    assert state.computed == 1
    assert sweeps.table(out) == sweeps.table(tmp_path / "whole")
