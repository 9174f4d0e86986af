"""Planning a run: its identity and whether it is there, without weights in memory; and what runs share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import calprompt
import samples
from calprompt.cli import main
from calprompt.clip.identity import identify_backbone
from calprompt.clip.load import load_backbone
from calprompt.clip.preprocessing import Preprocessing
from calprompt.data import images as image_files
from calprompt.data.checks import UnreadableImages
from calprompt.data.images import ImageMemory
from calprompt.errors import DataError
from calprompt.features.store import FeatureStore
from calprompt.runs import planning
from calprompt.runs.config import RunConfig
from calprompt.runs.execute import run
from calprompt.runs.planning import find_finished, plan
from calprompt.runs.resources import Resources
from calprompt.training_config import TrainingConfig


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALPROMPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("calprompt.clip.load.load_backbone", refuse)


class TestIdentity:
    """What a backbone is, without its weights."""

    def test_it_is_that_of_the_loaded_one(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        spec = str(samples.backbone())
        assert identify_backbone(spec) is None
        loaded = load_backbone(spec)
        no_loading(monkeypatch)
        known = identify_backbone(spec)
        assert known is not None
        assert (known.name, known.fingerprint) == (loaded.name, loaded.fingerprint)
        assert known.preprocessing == loaded.preprocessing
        assert (known.embed_dim, known.text_depth, known.image_depth) == (32, 2, 2)
        assert identify_backbone(spec, dtype="float64") is None, "other weights, other fingerprint"

    @pytest.mark.parametrize(
        "name", ["open_clip_model.safetensors", "open_clip_config.json", "preprocessor_config.json"]
    )
    def test_a_file_that_changed_is_noticed(self, name: str, tmp_path: Path, cache: Path) -> None:
        folder = Path(shutil.copytree(samples.backbone(), tmp_path / "clip"))
        load_backbone(folder)
        assert identify_backbone(folder) is not None
        path = folder / name
        path.write_bytes(path.read_bytes() if path.exists() else b"{}")  # the same bytes: its time is another
        assert identify_backbone(folder) is None

    @pytest.mark.parametrize("damage", ["", "{", "[]", '{"files": {}}', '{"files": {}, "identity": {"name": 3}}'])
    def test_a_damaged_entry_is_not_used(self, damage: str, cache: Path) -> None:
        load_backbone(samples.backbone())
        (entry,) = (cache / "backbones").iterdir()
        entry.write_text(damage)
        assert identify_backbone(samples.backbone()) is None

    def test_an_unwritable_cache_is_no_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("CALPROMPT_CACHE", str(tmp_path / "file"))
        load_backbone(samples.backbone())
        assert identify_backbone(samples.backbone()) is None


class TestPlan:
    """The identity of a run."""

    def test_it_needs_no_weights(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        config = samples.config(samples.pictures())
        done = run(config, tmp_path)
        no_loading(monkeypatch)
        planned = plan(config)
        assert planned.fingerprint == done.record["fingerprint"]
        assert planned.locate(tmp_path) == done.folder
        assert run(config, tmp_path).reused

    def test_the_version_of_the_package_is_no_part_of_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config = samples.config(samples.pictures())
        before = plan(config).fingerprint
        monkeypatch.setattr(calprompt, "__version__", "0.7.3")
        assert plan(config).fingerprint == before
        monkeypatch.setattr(planning, "RESULTS", planning.RESULTS + 1)
        assert plan(config).fingerprint != before
        assert plan(config).earlier_fingerprints == ()

    def test_another_process_finds_it_without_torch(self, tmp_path: Path) -> None:
        words = ["--backbone", str(samples.backbone()), "--data", str(samples.pictures()), "--out", str(tmp_path)]
        words += ["--epochs", "1", "--shots", "2", "--set", "context=2", "--quiet"]
        assert main(["train", *words]) == 0
        script = (
            "import sys; from calprompt.cli import main; "
            f"assert main({['train', *words]!r}) == 0; assert 'torch' not in sys.modules"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("already finished, nothing was computed:")


class TestFinished:
    """A finished run found by its settings alone: only if nothing that it depends on has changed."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return samples.picture_folder(tmp_path / "photos", each=6)

    @pytest.fixture
    def settings(self, root: Path) -> dict[str, object]:
        return {
            "backbone": str(samples.backbone()),
            "data": str(root),
            "epochs": 1,
            "shots": 2,
            "options": {"context": 2},
        }

    def config(self, settings: dict[str, object]) -> RunConfig:
        own = {name: value for name, value in settings.items() if name != "epochs"}
        return RunConfig(**own, training=TrainingConfig(epochs=1))  # type: ignore[arg-type]

    def test_what_changed_is_not_found(self, tmp_path: Path, root: Path, settings: dict[str, object]) -> None:
        out = tmp_path / "runs"
        assert find_finished(settings, out) is None
        done = run(self.config(settings), out)
        found = find_finished(settings, out)
        assert found is not None
        assert (found.folder, found.reused) == (done.folder, True)
        for change in ({"epochs": 2}, {"seed": 3}, {"loss": "ce"}, {"shots": 3}, {"crop": 0.5}, {"template": "a {}."}):
            assert find_finished(settings | change, out) is None
        (root / "classes.yaml").write_text("template: an image of {}.\n")
        assert find_finished(settings, out) is None, "the sentence of the untuned model is another"
        (root / "classes.yaml").unlink()
        assert find_finished(settings, out) is not None
        for path in (root / "ant").iterdir():
            samples.picture(path, seed=4321)
        assert find_finished(settings, out) is None, "the pictures are others"

    def test_other_weights_are_not_found(self, tmp_path: Path, settings: dict[str, object]) -> None:
        weights = Path(shutil.copytree(samples.backbone(), tmp_path / "clip"))
        settings = settings | {"backbone": str(weights)}
        run(self.config(settings), tmp_path / "runs")
        assert find_finished(settings, tmp_path / "runs") is not None
        os.utime(weights / "open_clip_model.safetensors")
        assert find_finished(settings, tmp_path / "runs") is None, "that has to be looked at"

    def test_an_edited_import_is_not_found(self, tmp_path: Path, settings: dict[str, object]) -> None:
        own = tmp_path / "own.py"
        own.write_text("# nothing\n")
        settings = settings | {"imports": (str(own),)}
        run(self.config(settings), tmp_path / "runs")
        assert find_finished(settings, tmp_path / "runs") is not None
        own.write_text("# something\n")
        assert find_finished(settings, tmp_path / "runs") is None

    def test_a_damaged_neighbouring_run_is_ignored(self, tmp_path: Path, settings: dict[str, object]) -> None:
        done = run(self.config(settings), tmp_path / "runs")
        other = Path(shutil.copytree(done.folder, tmp_path / "runs" / f"{done.folder.name[:-12]}000000000000"))
        (other / "run.json").write_text("{")
        found = find_finished(settings, tmp_path / "runs")
        assert found is not None
        assert found.folder == done.folder
        assert run(self.config(settings | {"shots": 1}), tmp_path / "runs").status == "finished"

    def test_missing_data_are_reported_immediately(self, tmp_path: Path, settings: dict[str, object]) -> None:
        with pytest.raises(DataError, match="there is no data at"):
            find_finished(settings | {"data": str(tmp_path / "nothing")}, tmp_path)


class TestResources:
    """What is loaded once and used by the next run."""

    def test_runs_share_backbone_dataset_and_features(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: Counter[str] = Counter()

        def counted(name: str, module: str) -> None:
            import importlib

            owner = importlib.import_module(module)
            real = getattr(owner, name)

            def count(*given: object, **named: object) -> object:
                calls[name] += 1
                return real(*given, **named)

            monkeypatch.setattr(owner, name, count)

        counted("load_backbone", "calprompt.clip.load")
        counted("load_dataset", "calprompt.runs.resources")
        counted("frozen_features", "calprompt.features.frozen")
        shared = Resources()
        config = samples.config(samples.pictures())
        runs = [run(replace(config, loss=loss), tmp_path / "shared", resources=shared) for loss in ("ce", "tcpt")]
        assert calls == {"load_backbone": 1, "load_dataset": 1, "frozen_features": 4}
        for done, loss in zip(runs, ("ce", "tcpt"), strict=True):
            alone = run(replace(config, loss=loss), tmp_path / "alone")
            for name in ("prompts.safetensors", "logits.safetensors", "metrics.json", "history.jsonl"):
                assert (alone.folder / name).read_bytes() == (done.folder / name).read_bytes()

    def test_views_of_one_backbone_do_not_disturb_each_other(self, tmp_path: Path) -> None:
        shared = Resources()
        plain = samples.config(samples.pictures())
        half = replace(plain, training=replace(plain.training, autocast="bfloat16"), crop=0.9, chunk=1)
        first = run(plain, tmp_path / "1", resources=shared)
        run(half, tmp_path / "2", resources=shared)
        backbone = shared.backbone(plain.backbone)
        assert (backbone.autocast, backbone.chunk, backbone.preprocessing.crop) == (None, None, 0.08)
        again = run(plain, tmp_path / "3", resources=shared)
        name = "logits.safetensors"
        assert (first.folder / name).read_bytes() == (again.folder / name).read_bytes()
        with pytest.raises(AttributeError):
            backbone.chunk = 4  # type: ignore[misc]
        assert backbone.view(chunk=4).model is backbone.model
        assert backbone.to("cpu") is backbone

    def test_a_picture_that_changes_on_disk_is_noticed(self, tmp_path: Path) -> None:
        root = samples.picture_folder(tmp_path / "photos")
        shared = Resources()
        config = samples.config(root, tuner="zero-shot", shots=None)
        first = run(config, tmp_path / "runs", resources=shared)
        samples.picture(root / "ant" / "0.png", seed=999)
        second = run(config, tmp_path / "runs", resources=shared)
        assert first.folder != second.folder
        assert not second.reused
        alone = run(config, tmp_path / "alone")
        name = "logits.safetensors"
        assert (alone.folder / name).read_bytes() == (second.folder / name).read_bytes()

    def test_features_are_kept_up_to_a_budget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shared = Resources()
        monkeypatch.setattr("calprompt.runs.resources.FEATURE_BUDGET", 1)
        images = shared.dataset(samples.pictures()).test.images
        for views in (0, 1, 2):
            shared.features(samples.loaded(), images, views, unreadable=UnreadableImages())
        assert len(shared._features) == 1

    def test_the_store_is_used(self, tmp_path: Path) -> None:
        run(
            samples.config(samples.pictures()),
            tmp_path / "runs",
            resources=Resources(store=FeatureStore(tmp_path / "s")),
        )
        assert list((tmp_path / "s").glob("*.sqlite"))


class TestMemory:
    """Bytes of image files, kept up to a budget."""

    def test_the_oldest_go_first_and_changed_files_are_read_again(self, tmp_path: Path) -> None:
        paths = [str(tmp_path / f"{name}.bin") for name in "abc"]
        for path in paths:
            Path(path).write_bytes(b"x" * 10)
        memory = ImageMemory(budget=25)
        for path in paths:
            assert memory.read(path) == b"x" * 10
        assert (len(memory), memory.size) == (2, 20)
        Path(paths[2]).write_bytes(b"y" * 12)
        assert memory.read(paths[2]) == b"y" * 12
        assert memory.size == 22
        memory.clear()
        assert (len(memory), memory.size) == (0, 0)

    def test_a_large_file_is_not_kept(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"x" * 100)
        memory = ImageMemory(budget=25)
        assert len(memory.read(str(tmp_path / "a"))) == 100
        assert memory.size == 0

    def test_digests_outlive_the_bytes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset = Resources(memory=ImageMemory(budget=0)).dataset(samples.pictures())
        before = [dataset.test.images.digest(index) for index in range(3)]
        monkeypatch.setattr(image_files, "read", None)  # nothing is read any more
        assert [dataset.test.images.digest(index) for index in range(3)] == before


def test_preprocessing_survives_as_plain_data() -> None:
    preprocessing = Preprocessing(32, crop=0.5)
    assert Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict()))) == preprocessing
