"""The loop over the pocket: what it runs, that it goes on where it stood, and what it collects."""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

import samples
from calprompt import pocket as embedded
from calprompt.errors import CalpromptError
from calprompt.runs import Target
from calprompt.runs.folder import load_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pocket(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    return importlib.import_module("pocket")


def asked(out: Path, **changed: object) -> argparse.Namespace:
    asked_for = {"settings": "tuned", "tuners": ("coop",), "losses": ("ce",), "datasets": ("photos",), "seeds": (1,)}
    return argparse.Namespace(**{**asked_for, "shots": 16, "minutes": 9.0, "out": out, **changed})


@pytest.mark.parametrize("settings", ["published", "tuned"])
def test_the_whole_comparison_is_every_tuner_loss_dataset_and_seed(
    pocket: ModuleType, tmp_path: Path, settings: str
) -> None:
    whole = {"tuners": pocket.TUNERS, "losses": pocket.LOSSES, "datasets": pocket.DATASETS, "seeds": pocket.SEEDS}
    jobs = list(pocket.jobs(asked(tmp_path, settings=settings, **whole)))
    assert len({job.name for job in jobs}) == len(jobs) == 7 * 7 * 12 * 5
    for job in {job.tuner: job for job in jobs if settings == "published"}.values():
        recipe = pocket.published(job.tuner)
        assert pocket.settings_of(job) == recipe
        assert job.rate == recipe["lr"]


def test_it_goes_on_where_it_stood_and_collects_one_table(
    pocket: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, small = pocket.build_config, {"backbone": str(samples.backbone()), "data": str(samples.feature_file())}
    wanted: list[tuple[str, str, str]] = []

    def smaller(**given):
        wanted.append((given["backbone"], given["data"], given["loss"]))
        return build(**{**given, **small, "epochs": 1, "shots": 8})

    monkeypatch.setattr(pocket, "build_config", smaller)
    monkeypatch.setattr(pocket, "TABLE", tmp_path / "table.csv")
    first, both = asked(tmp_path), asked(tmp_path, losses=("ce", "tcpt"))
    pocket.perform(list(pocket.jobs(first)), first)
    (done,) = (tmp_path / "done").glob("*.json")
    before = done.stat().st_mtime_ns
    pocket.collect(first)
    kept = (tmp_path / "table.csv").read_text().splitlines()
    pocket.perform(list(pocket.jobs(both)), both)
    assert done.stat().st_mtime_ns == before
    assert wanted == [("pocket", "pocket_photos", "ce"), ("pocket", "pocket_photos", "tcpt")]
    done.unlink()
    pocket.collect(both)
    after = (tmp_path / "table.csv").read_text().splitlines()
    assert after[: len(kept)] == kept  # rows of a run that is no longer there stay
    rows = list(csv.DictReader(after))
    named = {(row["loss"], row["model"], row["calibrator"], row["split"]) for row in rows}
    assert len(named) == len(rows)
    for loss in ("ce", "tcpt"):
        assert {split for *of, split in named if of == [loss, "tuned", "none"]} == {"base", "novel"}
        assert {split for *of, split in named if of == [loss, "zero-shot", "none"]} == {"base", "novel"}
        known = {calibrator for of, model, calibrator, _ in named if (of, model) == (loss, "tuned")}
        assert known == {"none", *pocket.CALIBRATORS}
    record = json.loads(next((tmp_path / "done").glob("*.json")).read_text())
    assert set(record["on_shots"]) == {"tuned", "zero-shot"}


@pytest.mark.parametrize("variant", ["words", "long", "few", "sharp", "calibrated", "depth6"])
def test_a_variant_changes_something_of_every_run(
    pocket: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    monkeypatch.setattr(pocket, "calibrated_scale", lambda *_: 12.0)
    shots = 2 if variant == "few" else 16
    jobs = list(pocket.jobs(asked(tmp_path, settings=variant, datasets=pocket.DATASETS, shots=shots)))
    assert len(jobs) == (9 if variant == "long" else 12)
    for job in jobs[:4]:
        plain = replace(job, settings="tuned", shots=16)
        ours, theirs = (
            (pocket.settings_of(each), each.shots, pocket.backbone_of(each, tmp_path, None)) for each in (job, plain)
        )
        assert ours != theirs


@pytest.mark.parametrize(("settings", "scale"), [("sharp", 50.0), ("calibrated", 12.0)])
def test_another_logit_scale_is_all_that_differs_from_the_pocket(
    pocket: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, scale: float
) -> None:
    monkeypatch.setattr(pocket, "calibrated_scale", lambda *_: 12.0)
    (job,) = pocket.jobs(asked(tmp_path, settings=settings))
    folder = Path(pocket.backbone_of(job, tmp_path, None))
    ours, theirs = (load_file(each / "open_clip_model.safetensors") for each in (folder, pocket.MODEL))
    assert ours["logit_scale"].float().exp().item() == pytest.approx(scale, rel=0.01)  # stored in 16 bits
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == ["logit_scale"]


def test_shifts_are_those_of_the_catalogue_and_tested_with_the_runs_of_their_dataset(
    pocket: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(pocket.SHIFTS) == {name for name in embedded.names() if "of" in embedded.sheet(name).record}
    jobs = list(pocket.jobs(asked(tmp_path, settings="shifted", datasets=pocket.DATASETS)))
    assert [job.dataset for job in jobs] == list(pocket.SHIFTS)
    asked_for: list[tuple[str, str]] = []

    def run(config, *_, **__):
        asked_for.append((config.data, config.loss))
        raise CalpromptError("asked for enough")

    monkeypatch.setattr(pocket, "run", run)
    with pytest.raises(SystemExit, match="4 jobs failed"):
        pocket.perform(jobs, asked(tmp_path))
    assert asked_for == [("pocket_animals", "ce")] * 4


def test_numbers_of_a_shift_are_those_of_the_tuned_and_of_the_untuned_model(
    pocket: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shots, test images and shifted ones are the same here, so all numbers are those that the run has."""
    data = samples.tensors()
    data |= {f"test_{kind}": data[f"train_{kind}"].clone() for kind in ("features", "labels")}
    path = samples.tensor_file(tmp_path / "toys.safetensors", data)
    asked_for: list[str] = []
    monkeypatch.setattr(pocket, "build_config", lambda **_: samples.config(path, shots=8))
    monkeypatch.setattr(pocket, "Target", lambda data: (asked_for.append(data), Target(str(path)))[1])
    job = next(pocket.jobs(asked(tmp_path, settings="shifted")))
    pocket.perform([job], asked(tmp_path))
    assert asked_for == [f"pocket_{job.dataset}"]
    record = json.loads((tmp_path / "done" / f"{job.name}.json").read_text())
    tuned = load_run(tmp_path / "runs" / record["run"]).metrics
    models = {"tuned": tuned, "zero-shot": tuned["zero_shot"]}
    assert [(row["model"], row["split"]) for row in record["rows"]] == [
        (model, split) for model in models for split in ("base", "novel")
    ]
    near = samples.rounding(samples.SCALE, samples.EMBED)  # as far as the logits are apart, the likelihood may be too
    for row in record["rows"]:
        for metric in pocket.METRICS:
            assert row[metric] == pytest.approx(models[row["model"]][row["split"]][metric], abs=near)
    assert record["on_shots"] == pytest.approx({model: found["base"]["accuracy"] for model, found in models.items()})
    assert record["on_shots"]["tuned"] != record["on_shots"]["zero-shot"]


def nll_of(pocket: ModuleType, monkeypatch: pytest.MonkeyPatch, best: float) -> list[str]:
    """Instead of runs: the further a rate is from the best one, the larger the loss. What was run, by name."""
    run: list[str] = []

    def work(job, out: Path, store) -> None:
        run.append(job.name)
        done = out / "done" / f"{job.name}.json"
        done.write_text(json.dumps({"val": {"nll": abs(math.log(job.rate / best))}}))

    monkeypatch.setattr(pocket, "work", work)
    return run


@pytest.mark.parametrize(("best", "tried"), [(0.002, 5), (0.06, 7), (2.0, 7), (0.00015, 6), (1e-7, 7)])
def test_the_best_rate_is_never_the_last_one_tried_if_there_is_another(
    pocket: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: float, tried: int
) -> None:
    rates = tmp_path / "rates.json"
    rates.write_text('{"kgcoop": {"rate": 0.5}}')
    monkeypatch.setattr(pocket, "RATES", rates)
    run = nll_of(pocket, monkeypatch, best)
    pocket.choose_rates(asked(tmp_path))
    found = json.loads(rates.read_text())
    assert found["kgcoop"] == {"rate": 0.5}
    assert found["coop"]["rate"] == pytest.approx(min(max(best, 2e-5), 0.2), rel=0.8)
    assert len(found["coop"]["val_nll"]) == tried
    assert len(run) == 3 * tried
    pocket.choose_rates(asked(tmp_path))
    assert len(run) == 3 * tried
    assert json.loads(rates.read_text()) == found


def test_rates_are_not_chosen_before_all_runs_are_done(
    pocket: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pocket, "RATES", tmp_path / "rates.json")
    nll_of(pocket, monkeypatch, 0.002)
    with pytest.raises(SystemExit, match=r"coop with 0.1 times the published rate is not done; start again"):
        pocket.choose_rates(asked(tmp_path, minutes=-1.0))
    assert not (tmp_path / "rates.json").exists()


def test_processes_share_the_work(pocket: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process is at is left to it, and what it has done is not done again."""
    run = nll_of(pocket, monkeypatch, 0.002)
    chosen = asked(tmp_path, seeds=(1, 2, 3))
    first, second, third = pocket.jobs(chosen)
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / f"{second.name}.json").write_text("{}")
    with pocket.claimed(first, tmp_path) as ours:
        assert ours
        pocket.perform([first, second, third], chosen)
    assert run == [third.name]
    pocket.perform([first, second, third], chosen)
    assert run == [third.name, first.name]


def test_a_folder_without_a_finished_job_is_named(
    pocket: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pocket, "TABLE", tmp_path / "table.csv")
    with pytest.raises(SystemExit, match=f"{tmp_path} has no finished job"):
        pocket.collect(asked(tmp_path))
