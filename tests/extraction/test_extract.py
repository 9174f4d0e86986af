"""Features computed ahead: a run that comes later computes none, and nothing that is stored is computed twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import samples
from calprompt import extraction as extraction_room
from calprompt.cli.app import main
from calprompt.errors import CalpromptError, DataError, SettingError
from calprompt.executors.local import LocalExecutor
from calprompt.executors.ray import RayExecutor
from calprompt.extraction import ExtractionSettings, extract, plan_extraction
from calprompt.features import frozen, housekeeping
from calprompt.features.store import FeatureStore
from calprompt.runs import resources
from calprompt.runs.execute import run
from executors import clusters
from sweep.sweeps import Here

VIEWS = 2


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(extraction_room, "FEATURES_PER_PORTION", 12)
    resources._of_group.clear()
    yield
    resources._of_group.clear()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each call of an image tower had."""
    calls: list[int] = []
    encode = frozen.encode
    monkeypatch.setattr(frozen, "encode", lambda using, pixels: (calls.append(len(pixels)), encode(using, pixels))[1])
    return calls


def settings(data: Path | None = None, **changes: Any) -> ExtractionSettings:
    return ExtractionSettings(str(data or samples.pictures()), (str(samples.backbone()),), views=VIEWS, **changes)


def stored(folder: Path) -> list[tuple[int, int]]:
    """Images and views of every space in a store."""
    return [(space.images, space.features) for space in housekeeping.spaces(FeatureStore(folder))]


@pytest.mark.parametrize("changes", [{}, {"crop": 0.5}, {"dtype": "float64"}])
def test_a_later_run_computes_no_feature(tmp_path: Path, computed: list[int], changes: dict[str, Any]) -> None:
    """Whatever its shots and seed; and its results are those of a run without a store, to the bit."""
    plan = plan_extraction(settings(**changes), store=tmp_path / "store")
    state = extract(plan, executor=Here())
    assert state.computed == plan.features == sum(computed)
    computed.clear()
    for config in (samples.config(samples.pictures(), **changes), samples.config(samples.pictures(), shots=2, seed=5)):
        config = replace(config, **changes)
        done = run(config, tmp_path / "runs", store=FeatureStore(tmp_path / "store"))
        assert computed == []
        plain = run(config, tmp_path / "plain")
        assert computed
        computed.clear()
        for name in ("prompts.safetensors", "logits.safetensors"):
            assert (done.folder / name).read_bytes() == (plain.folder / name).read_bytes()


def test_stored_features_are_skipped(tmp_path: Path, computed: list[int]) -> None:
    plan = plan_extraction(settings(), store=tmp_path)
    portions = sum(map(len, plan.groups))

    class Interrupted(Here):
        def map(self, groups: Any, work: Any) -> Any:
            for number, outcome in enumerate(super().map(groups, work)):
                if number == portions // 2:
                    raise KeyboardInterrupt
                yield outcome

    with pytest.raises(KeyboardInterrupt):
        extract(plan, executor=Interrupted())
    first = sum(computed)
    assert 0 < first < plan.features
    state = extract(plan, executor=Here())
    assert (state.found, state.computed) == (first, plan.features - first)
    assert sum(computed) == plan.features
    state = extract(plan, executor=Here())
    assert (state.found, state.computed) == (plan.features, 0)


def test_several_backbones_and_some_splits(tmp_path: Path) -> None:
    backbones = (str(samples.backbone()), "pocket")
    wanted = replace(settings(), backbones=backbones, splits=("test",))
    plan = plan_extraction(wanted, store=tmp_path)
    assert extract(plan, executor=Here()).computed == plan.features == 2 * plan.images["test"]
    assert stored(tmp_path) == [(plan.images["test"],) * 2] * 2


def test_features_are_sent_back_where_no_store_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[int]
) -> None:
    """Another process' work, with the store of another machine: the driver's store has the same features."""
    here, there = tmp_path / "here", tmp_path / "there"
    plan = plan_extraction(settings(), store=here)
    monkeypatch.setenv("CALPROMPT_CACHE", str(there))
    state = extract(plan, executor=Here(), send_back=True)
    assert state.computed == plan.features
    assert stored(here) == stored(there / "features")
    computed.clear()
    run(samples.config(samples.pictures()), tmp_path / "runs", store=FeatureStore(here))
    assert computed == []


@pytest.mark.long
def test_on_a_cluster_that_loses_a_node(tmp_path: Path, computed: list[int]) -> None:
    """Into a shared store, and sent back."""
    cluster = clusters.cluster()
    clusters.restore(cluster)
    plan = plan_extraction(settings(), store=tmp_path / "shared")
    seen: list[int] = []

    def progress(what: str, done: int, total: int, note: str = "") -> None:
        seen.append(done)
        if len(seen) == 3:
            clusters.lose_node(cluster)

    with RayExecutor(cluster.address) as executor:
        extract(plan, executor=executor, progress=progress)
        sent = plan_extraction(settings(), store=tmp_path / "sent")
        extract(sent, executor=executor, send_back=True)
    assert seen[-1] == plan.features
    assert stored(tmp_path / "shared") == stored(tmp_path / "sent")
    run(samples.config(samples.pictures()), tmp_path / "runs", store=FeatureStore(tmp_path / "sent"))
    run(samples.config(samples.pictures()), tmp_path / "more", store=FeatureStore(tmp_path / "shared"))
    assert computed == []


@pytest.mark.long
def test_interrupted_command_goes_on_where_it_stopped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes are at work when it is interrupted; the second time, what they have stored is found."""
    photos = samples.picture_folder(tmp_path / "photos", each=80)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CALPROMPT_CACHE": str(tmp_path / "cache")}
    words = ["extract", str(photos), "--backbone", str(samples.backbone()), "--workers", "2"]
    command = [sys.executable, "-m", "calprompt", *words]
    first = subprocess.Popen(
        command,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    end = time.monotonic() + 120
    folder = tmp_path / "cache" / "features"
    while not any(count for _, count in stored(folder)) and time.monotonic() < end and first.poll() is None:
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGINT)
    _, complaints = first.communicate(timeout=120)
    assert first.returncode == 130, complaints
    assert "interrupted; run the same command to compute what is not stored yet" in complaints
    assert "Traceback" not in complaints
    monkeypatch.setenv("CALPROMPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(LocalExecutor, "map", lambda self, groups, work: Here().map(groups, work))
    assert main(words) == 0
    found = int(capfd.readouterr().out.split(" were there")[0].split()[-1])
    assert found > 0


def test_images_that_cannot_be_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = samples.picture_folder(tmp_path / "photos")
    (photos / "ant" / "3.png").write_text("no image")
    monkeypatch.setattr(LocalExecutor, "map", lambda self, groups, work: Here().map(groups, work))
    assert main(["extract", str(photos), "--backbone", str(samples.backbone()), "--views", "1", "--quiet"]) == 1
    said = capfd.readouterr().out
    assert "1 image cannot be read:\n  ant/3.png (" in said


def test_invalid_input(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="holds image features, not images"):
        plan_extraction(settings(samples.feature_file()))
    with pytest.raises(SettingError, match="has something twice"):
        replace(settings(), splits=("test", "test"))
    with pytest.raises(SettingError, match="views must be at least 0"):
        ExtractionSettings("photos", ("pocket",), views=-1)
    wrong = replace(settings(), backbones=("nowhere.pt",))
    with pytest.raises(CalpromptError, match=r"nowhere\.pt, train, images 1 to 4: "):
        extract(plan_extraction(wrong, store=tmp_path / "store"), executor=Here())
    (tmp_path / "file").touch()
    with pytest.raises(CalpromptError, match="cannot write to the feature store"):
        extract(plan_extraction(settings(), store=tmp_path / "file"), executor=Here())
    assert main(["extract", "nowhere", "--backbone", "pocket"]) == 2
    plan = plan_extraction(settings(), store=tmp_path / "other")
    other = [[replace(each, names="0" * 64) for each in group] for group in plan.groups]
    with pytest.raises(CalpromptError, match="has other images here than where the work was planned"):
        extract(replace(plan, groups=tuple(map(tuple, other))), executor=Here())


def test_extracted_views_are_found_by_runs(tmp_path: Path) -> None:
    """The same keys and bits as the extraction of a run, one by one."""
    plan = plan_extraction(settings(splits=("train",)), store=tmp_path)
    extract(plan, executor=Here())
    backbone = samples.loaded().view(crop=0.08)
    images = samples.picture_files()
    for views in (0, VIEWS):
        fresh = frozen.frozen_features(backbone, images, views, unreadable=frozen.UnreadableImages())
        again = frozen.frozen_features(
            backbone, images, views, unreadable=frozen.UnreadableImages(), store=FeatureStore(tmp_path)
        )
        torch.testing.assert_close(again, fresh, rtol=0, atol=0)
