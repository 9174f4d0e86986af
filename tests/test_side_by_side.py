"""Trainings in one pass: each ends where it would alone, and none disturbs the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import samples
from calprompt import side_by_side
from calprompt.errors import BusyError, NonFiniteLossError
from calprompt.files import locked
from calprompt.losses import Objective
from calprompt.runs import Resources, Run, RunConfig, plan, run, together
from calprompt.runs.together import run_together
from calprompt.side_by_side import are_stackable, is_stackable, train_side_by_side
from calprompt.training import TrainingConfig, TrainingJob, TrainingState
from calprompt.tuners import CoOp, create_tuner, tuners
from tiny import BASE, Images, images, tiny_backbone

DOUBLE, SINGLE = tiny_backbone(dtype=torch.float64), tiny_backbone()
FROZEN = Images(
    pixels=torch.empty(0),
    features=torch.randn(12, DOUBLE.embed_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
    labels=torch.arange(12) % len(BASE),
    as_pixels=False,
)
LOSSES = ("ce", "tcpt", "ce + zs_norm", "ce + 2*moments(classes=2)", "mbls")
STACKABLE = [name for name in tuners.available() if vars(tuners.get(name)).get("stackable")]


def job(
    tuner: str = "coop",
    seed: int = 1,
    loss: str = "ce",
    backbone: Any = DOUBLE,
    options: dict[str, Any] | None = None,
    **training: Any,
) -> TrainingJob:
    config = TrainingConfig(**{"epochs": 4, "batch_size": 5, "lr": 0.02, "seed": seed, **training})
    made = create_tuner(tuner, backbone, BASE, seed=seed, **({"context": 4} | (options or {})))
    data = images(made) if backbone is SINGLE else FROZEN
    shuffled = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
    data = replace(data, features=data.features[shuffled], labels=data.labels[shuffled])
    return TrainingJob(made, data, Objective.parse(loss), config)


def prompts(jobs: Sequence[TrainingJob]) -> list[Tensor]:
    return [torch.cat([parameter.detach().flatten() for parameter in each.tuner.parameters()]) for each in jobs]


def alone(make: Callable[[], list[TrainingJob]]) -> list[Tensor]:
    jobs = make()
    for each in jobs:
        each.train()
    return prompts(jobs)


@pytest.mark.parametrize("options", [{}, {"class_specific": True}, {"position": "middle"}], ids=str)
@pytest.mark.parametrize("tuner", STACKABLE)
def test_each_ends_where_it_would_alone(tuner: str, options: dict[str, Any]) -> None:
    if tuner == "kgcoop" and options.get("position"):
        options = {**options, "words": None}
    if tuner == "prograd" and options:
        options = {**options, "from_template": False}
    elif tuner == "prograd":
        # with more vectors than words: where the prompt begins as the template itself, the gradient that ProGrad
        # projects on is 0 but for rounding, and has no direction
        options = {"context": 6}

    def make() -> list[TrainingJob]:
        return [
            job(tuner, seed, loss, options=options, lr=0.02 / seed, weight_decay=0.01, batch_size=3 + seed)
            for seed, loss in enumerate(LOSSES, start=1)
        ]

    jobs = make()
    assert train_side_by_side(jobs) == [None] * len(LOSSES)
    for mine, expected in zip(prompts(jobs), alone(make), strict=True):
        assert torch.allclose(mine, expected, rtol=0, atol=1e-12)
    assert all(not torch.allclose(a, b, rtol=0, atol=1e-9) for a, b in pairwise(prompts(jobs)))


@pytest.mark.parametrize(
    "options", [{"projection": False}, {"regularisers": "distillation"}, {"strength": 0.5}], ids=str
)
def test_the_gradients_of_prograd_are_its_own(options: dict[str, Any]) -> None:
    def make() -> list[TrainingJob]:
        return [job("prograd", seed, "tcpt", options={**options, "from_template": False}) for seed in (1, 2)]

    jobs = make()
    assert train_side_by_side(jobs) == [None, None]
    for mine, expected in zip(prompts(jobs), alone(make), strict=True):
        assert torch.allclose(mine, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("same", [False, True], ids=["other bits", "same bits"])
def test_exactly_the_same_bits_where_asked(exact: bool, same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor that would give other bits together, every step is made alone."""
    passes: list[int] = []
    stacked = CoOp.stacked_text_features.__func__  # type: ignore[attr-defined]

    def counted(cls: type[CoOp], members: Sequence[Any]) -> Tensor:
        passes.append(len(members))
        return stacked(cls, members)

    def make() -> list[TrainingJob]:
        return [job(seed=seed, backbone=SINGLE, batch_size=6) for seed in (1, 2, 3)]

    expected = alone(make)
    jobs = make()
    monkeypatch.setattr(side_by_side, "_gives_same_bits", lambda _: same)
    monkeypatch.setattr(CoOp, "stacked_text_features", classmethod(counted))
    train_side_by_side(jobs, exact=exact)
    assert passes == ([1] * 24 if exact and not same else [3] * 8)
    if exact and not same:
        assert all(map(torch.equal, prompts(jobs), expected))
    for mine, wanted in zip(prompts(jobs), expected, strict=True):
        assert torch.allclose(mine, wanted, rtol=0, atol=1e-5)


def test_bits_are_compared_for_real() -> None:
    members = [job(seed=seed, backbone=SINGLE).tuner for seed in (1, 2, 3)]
    together_bits = CoOp.stacked_text_features(members)
    alone_bits = torch.cat([CoOp.stacked_text_features([member]) for member in members])
    if not torch.equal(together_bits, alone_bits):
        assert not side_by_side._gives_same_bits(members)
    assert side_by_side._gives_same_bits(members[:1])

    class Other(CoOp):
        @classmethod
        def stacked_text_features(cls, tuners: Sequence[Any]) -> Tensor:
            return super().stacked_text_features(tuners) * (1 + len(tuners) * torch.finfo(torch.float32).eps)

    others = [Other(SINGLE, BASE, context=4, seed=seed) for seed in (1, 2)]
    assert not side_by_side._gives_same_bits(others)


class TestStates:
    """Checkpoints of members, and members that continue from them."""

    def states(self, jobs: Sequence[TrainingJob]) -> tuple[list[TrainingJob], list[list[TrainingState]]]:
        kept: list[list[TrainingState]] = [[] for _ in jobs]
        watched = [
            replace(each, after_epoch=lambda state, _, place=place: kept[place].append(state))
            for place, each in enumerate(jobs)
        ]
        return watched, kept

    def test_states_and_records_are_those_of_training_alone(self) -> None:
        records: dict[str, list[Any]] = {"alone": [], "together": []}

        def make(kind: str) -> list[TrainingJob]:
            return [
                replace(job(seed=seed, loss=loss), after_epoch=lambda s, r: records[kind].append((s, r)))
                for seed, loss in ((1, "ce"), (2, "tcpt"))
            ]

        train_side_by_side(make("together"))
        for each in make("alone"):
            each.train()
        by_epoch = sorted(records["alone"], key=lambda pair: pair[0].epoch)
        for (state, record), (expected, wanted) in zip(records["together"], by_epoch, strict=True):
            assert state.epoch == expected.epoch
            assert record == pytest.approx(wanted, abs=1e-12)
            for name in ("prompts", "momenta"):
                for key, tensor in getattr(expected, name).items():
                    assert torch.allclose(getattr(state, name)[key], tensor, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("after", [(1, 1), (0, 3), (4, 2)], ids=str)
    def test_members_continue_after_epochs_of_their_own(self, after: tuple[int, int]) -> None:
        def make() -> list[TrainingJob]:
            return [job(seed=seed, loss="tcpt") for seed in (1, 2)]

        jobs, kept = self.states(make())
        train_side_by_side(jobs)
        expected = prompts(jobs)
        again = [
            replace(each, state=states[done - 1] if done else None)
            for each, states, done in zip(make(), kept, after, strict=True)
        ]
        again, rest = self.states(again)
        train_side_by_side(again)
        assert [len(states) for states in rest] == [4 - done for done in after]
        for mine, wanted in zip(prompts(again), expected, strict=True):
            assert torch.allclose(mine, wanted, rtol=0, atol=1e-12)


class TestFailures:
    """What goes wrong in one of them."""

    def test_a_loss_that_is_not_finite_ends_only_its_own_training(self) -> None:
        def make() -> list[TrainingJob]:
            return [job(seed=seed, loss=loss, lr=lr, backbone=SINGLE) for seed, loss, lr in settings]

        settings = ((1, "ce", 0.02), (2, "ce", 1e38), (3, "tcpt", 0.02))

        jobs = make()
        first, second, third = train_side_by_side(jobs)
        assert first is third is None
        assert isinstance(second, NonFiniteLossError)
        assert "at epoch" in str(second)
        mine, expected = prompts(jobs), [make()[0], make()[2]]
        for each in expected:
            each.train()
        for ours, wanted in zip((mine[0], mine[2]), prompts(expected), strict=True):
            assert torch.allclose(ours, wanted, rtol=0, atol=1e-5)

    def test_a_loss_that_raises_ends_only_its_own_training(self) -> None:
        jobs = [job(seed=1), job(seed=2, loss="ce + moments(classes=99)")]
        none, error = train_side_by_side(jobs)
        assert none is None
        assert "classes of moments must be from 1 to" in str(error)

    def test_all_may_fail(self) -> None:
        assert all(train_side_by_side([job(seed=seed, lr=1e38, backbone=SINGLE) for seed in (1, 2)]))


class TestStackable:
    """Which trainings can share their steps."""

    @pytest.mark.parametrize("tuner", ["cocoop", "proda", "zero-shot", "maple", "promptsrc"])
    def test_not_every_tuner(self, tuner: str) -> None:
        assert not vars(tuners.get(tuner)).get("stackable")

    def test_a_class_says_it_for_itself(self) -> None:
        class Derived(CoOp):
            pass

        made = Derived(DOUBLE, BASE, context=4)
        assert not is_stackable(replace(job(), tuner=made))

    def test_gradient_norms_need_a_pass_of_their_own(self) -> None:
        assert is_stackable(job())
        assert not is_stackable(job(diagnose_every=1))

    @pytest.mark.parametrize(
        "other",
        [
            job("kgcoop"),
            job(options={"context": 3}),
            job(options={"position": "front"}),
            job(backbone=SINGLE),
            job(autocast="bfloat16"),
        ],
        ids=["tuner", "context", "position", "backbone", "precision"],
    )
    def test_what_they_must_have_in_common(self, other: TrainingJob) -> None:
        assert are_stackable(job(), job(seed=2, loss="tcpt", lr=1.0))
        assert not are_stackable(job(), other)
        with pytest.raises(ValueError, match="cannot share"):
            train_side_by_side([job(), other])


class TestRuns:
    """Whole runs, each into its own folder."""

    def configs(self, **settings: Any) -> list[RunConfig]:
        return [
            samples.config(samples.feature_file(), seed=seed, loss=loss, **settings)
            for seed in (1, 2)
            for loss in ("ce", "tcpt")
        ]

    def test_they_leave_what_single_runs_leave(self, tmp_path: Path) -> None:
        configs = self.configs()
        found = run_together(configs, tmp_path / "together", resources=Resources())
        for config, mine in zip(configs, found, strict=True):
            assert isinstance(mine, Run)
            own = run(config, tmp_path / "alone")
            assert mine.folder.name == own.folder.name
            assert sorted(path.name for path in mine.folder.iterdir()) == sorted(
                path.name for path in own.folder.iterdir()
            )
            for name in ("prompts.safetensors", "metrics.json", "history.jsonl", "logits.safetensors"):
                assert (mine.folder / name).read_bytes() == (own.folder / name).read_bytes(), "exact is the default"
            assert mine.record["timings"]["train"] > 0
        again = run_together(configs, tmp_path / "together", resources=Resources())
        assert all(isinstance(each, Run) and each.reused for each in again)

    def test_what_cannot_share_is_trained_by_itself(self, tmp_path: Path) -> None:
        configs = [
            samples.config(samples.feature_file(), tuner=tuner, options={})
            for tuner in ("zero-shot", "cocoop", "coop", "proda")
        ]
        found = run_together(configs, tmp_path, resources=Resources())
        assert [each.record["status"] for each in found if isinstance(each, Run)] == ["finished"] * 4

    def test_one_that_fails_notes_why(self, tmp_path: Path) -> None:
        configs = self.configs()
        configs[1] = samples.config(samples.feature_file(), loss="ce", lr=1e30)
        found = run_together(configs, tmp_path, resources=Resources())
        assert isinstance(found[1], NonFiniteLossError)
        assert [isinstance(each, Run) for each in found] == [True, False, True, True]
        records = [json.loads(path.read_text()) for path in tmp_path.glob("*/run.json")]
        assert sorted(record["status"] for record in records) == ["failed", *["finished"] * 3]

    def test_one_that_another_process_works_on_is_left_to_it(self, tmp_path: Path) -> None:
        configs = self.configs()
        folder = plan(configs[2]).locate(tmp_path)
        folder.mkdir(parents=True)
        with locked(folder):
            found = run_together(configs, tmp_path, resources=Resources())
        assert isinstance(found[2], BusyError)
        assert [isinstance(each, Run) for each in found] == [True, True, False, True]

    def test_an_interrupt_lets_go_of_all_folders(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        configs = self.configs(epochs=3)
        expected = {
            each.folder.name: (each.folder / "logits.safetensors").read_bytes()
            for each in run_together(configs, tmp_path / "whole", resources=Resources())
            if isinstance(each, Run)
        }

        def interrupted(jobs: Sequence[TrainingJob], **options: Any) -> Any:
            def stop(state: TrainingState, record: dict[str, float]) -> None:
                jobs[-1].after_epoch(state, record)  # type: ignore[misc]
                if state.epoch == 2:
                    raise KeyboardInterrupt

            return train_side_by_side([*jobs[:-1], replace(jobs[-1], after_epoch=stop)], **options)

        with monkeypatch.context() as patch:
            patch.setattr(together, "train_side_by_side", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run_together(configs, tmp_path / "cut", resources=Resources())
        statuses = [json.loads(path.read_text())["status"] for path in (tmp_path / "cut").glob("*/run.json")]
        assert statuses == ["running"] * 4
        found = run_together(configs, tmp_path / "cut", resources=Resources())
        for each in found:
            assert isinstance(each, Run)
            assert each.record["resumed_after_epoch"] == 2
            assert (each.folder / "logits.safetensors").read_bytes() == expected[each.folder.name]
