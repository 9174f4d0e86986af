"""The feature store: the right features or none, whoever else reads, writes, damages or prunes it meanwhile."""

import hashlib
import json
import os
import pickle
import threading
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import samples
from calprompt.clip import Backbone, load_backbone
from calprompt.data import (
    FeatureRows,
    ImageFiles,
    ImageRows,
    UnreadableImages,
)
from calprompt.errors import CalpromptError
from calprompt.features import encoding, extraction, frozen_features
from calprompt.features.store import FeatureStore, Space, usage
from calprompt.features.store import spaces as store_file
from calprompt.features.store.housekeeping import remove, spaces, to_prune, verify
from calprompt.features.store.shards import key
from calprompt.progress import FeatureProgress, silent
from calprompt.runs import run

backbone, files = samples.loaded, samples.picture_files


def features(store: FeatureStore | Path | None, images=None, views: int = 0, using: Backbone | None = None):
    store = FeatureStore(store) if isinstance(store, Path) else store
    images = files() if images is None else images
    return frozen_features(using or backbone(), images, views, unreadable=UnreadableImages(), store=store)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each call of the tower was asked for."""
    calls: list[int] = []
    encode = extraction.encode
    monkeypatch.setattr(
        extraction, "encode", lambda using, pixels: (calls.append(len(pixels)), encode(using, pixels))[1]
    )
    return calls


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is written."""
    monkeypatch.setattr(store_file, "SECONDS", 0.0)
    monkeypatch.setattr(encoding, "LARGE", 0)  # batches of 16


def test_what_was_computed_once_is_read(tmp_path: Path, computed: list[int]) -> None:
    expected = features(None, views=2)
    computed.clear()
    assert torch.equal(features(tmp_path, views=2), expected)
    assert sum(computed) == 60
    assert torch.equal(features(tmp_path, views=2), expected)
    assert torch.equal(features(tmp_path, files().take([7, 3]), views=1), expected[:1, [7, 3]])
    assert sum(computed) == 60
    assert torch.equal(features(tmp_path, views=3)[:2], expected)
    assert sum(computed) == 90  # the third view only
    assert torch.equal(features(tmp_path), features(None))


def test_any_mixture_of_stored_and_computed_has_the_same_bits(tmp_path: Path) -> None:
    expected = features(None, views=5)
    for seed in range(5):
        chosen = np.random.default_rng(seed).permutation(30)[: 3 + 4 * seed].tolist()
        views = 1 + seed
        assert torch.equal(features(tmp_path, files().take(chosen), views=views), expected[:views, chosen])
    assert torch.equal(features(tmp_path, views=5), expected)


def test_runs_have_the_same_bits_without_a_store_with_a_cold_and_a_warm_one(tmp_path: Path) -> None:
    kept = ("prompts.safetensors", "metrics.json", "history.jsonl", "logits.safetensors")

    def contents(name: str, store: FeatureStore | None, **settings) -> dict[str, bytes]:
        folder = run(samples.config(samples.pictures(), **settings), tmp_path / name, store=store).folder
        return {file: (folder / file).read_bytes() for file in kept}

    store = FeatureStore(tmp_path / "store")
    run(samples.config(samples.pictures(), seed=2, shots=3), tmp_path / "other", store=store)
    for tuner in ({}, {"tuner": "maple", "options": {}}):
        plain = contents("plain", None, **tuner)
        assert contents("cold", store, **tuner) == plain
        assert contents("warm", store, **tuner) == plain


def changed_weights(folder: Path) -> Backbone:
    folder.mkdir()
    held = load_file(samples.backbone() / "open_clip_model.safetensors")
    held["visual.proj"].view(torch.uint8)[0, 0] ^= 1  # the last bit of one weight
    save_file(held, folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text((samples.backbone() / "open_clip_config.json").read_text())
    return load_backbone(folder)


def test_a_stale_hit_is_impossible(tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    store, root = tmp_path / "store", samples.picture_folder(tmp_path / "photos", each=2)
    paths = [f"{name}/0.png" for name in samples.NAMES]
    images = ImageFiles.of(root, paths)

    def missed(using: Backbone | None = None, views: int = 0) -> int:
        computed.clear()
        found = features(store, images, views, using)
        missed = sum(computed)
        assert torch.equal(found, features(None, images, views, using))
        return missed

    assert [missed(), missed()] == [6, 0]
    data = bytearray((root / paths[2]).read_bytes())
    samples.picture(root / paths[2], seed=999)
    assert [missed(), missed()] == [1, 0]
    (root / paths[2]).write_bytes(data)
    assert missed() == 0
    (root / paths[2]).write_bytes(data + b"\0")  # the same picture in a file one byte longer
    assert missed() == 1
    assert [missed(views=1), missed(views=2)] == [6, 6]

    other = changed_weights(tmp_path / "changed")
    assert [missed(other), missed(other)] == [6, 0]
    plain, about = backbone(), backbone().preprocessing
    mean = (about.mean[0] + 1e-7, *about.mean[1:])
    for changed in (replace(about, mean=mean), replace(about, std=mean), replace(about, interpolation="bilinear")):
        again = Backbone(plain.model, preprocessing=changed, name=plain.name, fingerprint=plain.fingerprint)
        assert [missed(again), missed(again)] == [6, 0]
    assert missed(load_backbone(samples.backbone(), dtype=torch.bfloat16)) == 6
    assert missed(load_backbone(samples.backbone(), dtype=torch.float64)) == 6
    assert missed(plain.view(autocast=torch.bfloat16)) == 6
    monkeypatch.setattr(encoding, "EXTRACTION", encoding.EXTRACTION + 1)
    assert [missed(), missed()] == [6, 0]
    monkeypatch.setattr(encoding, "version", lambda name: "another")
    assert missed() == 6


def test_rows_are_kept_too_and_features_are_not(tmp_path: Path, computed: list[int]) -> None:
    rows = ImageRows(samples.tensors("images")["train_images"][:5])
    assert torch.equal(features(tmp_path, rows, views=3), features(tmp_path, rows))
    assert sum(computed) == 5
    held = FeatureRows(samples.tensors()["train_features"])
    assert torch.equal(features(tmp_path / "none", held)[0], held.rows)
    assert not (tmp_path / "none").exists()


def test_keys_differ_in_the_image_and_in_the_view() -> None:
    one, other = (hashlib.sha256(text).hexdigest() for text in (b"a", b"b"))
    assert len({key(digest, view) for digest in (one, other) for view in (0, 1, 256, 70_000)}) == 8


def only_shard(store: Path) -> Path:
    (path,) = store.glob("*/*.safetensors")
    return path


@pytest.mark.parametrize("harm", ["bit of a feature", "bit of a checksum", "cut", "empty", "text", "another space's"])
def test_a_damaged_shard_is_named_and_what_is_lost_is_computed_again(
    tmp_path: Path, harm: str, computed: list[int]
) -> None:
    store, expected = tmp_path / "store", features(None)
    features(store)
    path = only_shard(store)
    data = bytearray(path.read_bytes())
    places = {"bit of a feature": len(data) // 2, "bit of a checksum": -100}
    if harm in places:
        data[places[harm]] ^= 4
    other = {"cut": data[:-9], "empty": b"", "text": b"this is no shard"}
    if harm == "another space's":
        features(tmp_path / "other", using=backbone().view(autocast=torch.bfloat16))
        other[harm] = only_shard(tmp_path / "other").read_bytes()
    path.write_bytes(other.get(harm, data))
    computed.clear()
    with pytest.warns(UserWarning, match=f"{path.name} is damaged") as told:
        assert torch.equal(features(store), expected)
    assert len(told) == 1
    lost = 1 if harm in places else 30
    assert sum(computed) == lost
    assert path.with_suffix(".damaged").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(features(store), expected)
    assert sum(computed) == lost


def test_a_damaged_key_is_a_feature_that_is_not_found(tmp_path: Path, computed: list[int]) -> None:
    expected = features(None)
    features(tmp_path)
    path = only_shard(tmp_path)
    data = bytearray(path.read_bytes())
    data[-500] ^= 1
    path.write_bytes(data)
    computed.clear()
    assert torch.equal(features(tmp_path), expected)
    assert 0 < sum(computed) < 30
    assert [said for _, said in verify(FeatureStore(tmp_path)) if said] == ["its checksum is wrong"]


def test_verify_names_what_is_damaged(tmp_path: Path) -> None:
    for views in (0, 1):
        features(tmp_path, views=views)
    assert [said for _, said in verify(FeatureStore(tmp_path))] == ["", ""]
    path = next(tmp_path.glob("*/*.safetensors"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert [(file.path, said) for file, said in verify(FeatureStore(tmp_path)) if said] == [
        (path, "its checksum is wrong")
    ]
    assert [said for _, said in verify(FeatureStore(tmp_path))] == [""]


def refuse(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None) -> None:
    expected, store = features(None), FeatureStore(tmp_path)
    features(store, files().take([0, 1, 2]))
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.warns(UserWarning, match="features are not stored.*No space left on device") as told:
        assert torch.equal(features(store), expected)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(features(store), expected)
    assert spaces(store)[0].count() == (3, 3)


def test_a_read_only_file_system_is_read(tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    features(tmp_path, files().take(range(10)))
    computed.clear()

    def read_only(path: Path, mode: str) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("calprompt.files.open", read_only, raising=False)
    with pytest.warns(UserWarning, match="Read-only file system") as told:
        found = features(tmp_path)
    assert (len(told), sum(computed)) == (1, 20)
    assert torch.equal(found, features(None))


def test_a_folder_that_cannot_be_made_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="features are not stored"):
        assert torch.equal(features(tmp_path / "file" / "store"), features(None))


def test_small_shards_are_merged(tmp_path: Path, computed: list[int], at_once: None) -> None:
    expected = features(None, views=20)
    features(tmp_path, views=20)
    assert sum(computed) == 1200
    assert len(list(tmp_path.glob("*/*.safetensors"))) < 16 + 600 // 16 // 16
    assert torch.equal(features(tmp_path, views=20), expected)
    assert sum(computed) == 1200
    merged = list(tmp_path.glob("*/*.merged"))
    assert len(merged) > 16
    assert to_prune(FeatureStore(tmp_path)) == []  # another machine may still be reading them
    for path in merged:
        os.utime(path, (0, 0))
    assert {file.path for file in to_prune(FeatureStore(tmp_path))} == set(merged)
    features(tmp_path, views=21)
    assert not set(merged) & set(tmp_path.glob("*/*"))


def test_what_another_process_wrote_meanwhile_is_seen(tmp_path: Path, computed: list[int]) -> None:
    mine = FeatureStore(tmp_path)
    features(mine, files().take(range(5)))
    features(tmp_path, files().take(range(5, 30)))
    computed.clear()
    features(mine)
    assert not computed
    for path in tmp_path.glob("*/*.safetensors"):
        path.unlink()
    features(mine)
    assert sum(computed) == 30


def test_a_tower_on_another_device_is_run_by_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, callers = features(None, views=3), set()
    store = FeatureStore(tmp_path).space(encoding.description(backbone(), files()), "tiny")
    work = extraction.Extraction(backbone(), files(), range(1, 4), store, UnreadableImages())
    work.on_cpu = False
    encode = extraction.encode
    monkeypatch.setattr(extraction, "encode", lambda *both: (callers.add(threading.current_thread()), encode(*both))[1])
    assert torch.equal(work.run(FeatureProgress("features", 90, silent, stored=True)), expected)
    assert callers == {threading.current_thread()}


@pytest.mark.parametrize(("small", "reads"), [(1 << 16, 30), (0, 60)])
def test_small_files_are_read_once_and_large_ones_are_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int, reads: int
) -> None:
    expected, read, seen = features(None, views=2), ImageFiles.read, []
    monkeypatch.setattr(extraction, "SMALL", small)
    monkeypatch.setattr(ImageFiles, "read", lambda self, index: (seen.append(index), read(self, index))[1])
    assert torch.equal(features(tmp_path, views=2), expected)
    assert len(seen) == reads
    seen.clear()
    assert torch.equal(features(tmp_path, views=2), expected)
    assert sorted(seen) == list(range(30))


@pytest.mark.parametrize("small", [1 << 16, 0])
@pytest.mark.parametrize("views", [0, 2])
def test_a_file_that_changes_between_looking_and_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[int], small: int, views: int
) -> None:
    images, find = ImageFiles.of(tmp_path, ["a.png"]), Space.find
    old, new = ((files().root / files().paths[number]).read_bytes() for number in (0, 1))
    seen = old if small else new  # what was read first, or what was there when it was decoded
    (tmp_path / "a.png").write_bytes(seen)
    expected = features(None, images, views)
    (tmp_path / "a.png").write_bytes(old)
    monkeypatch.setattr(extraction, "SMALL", small)
    with monkeypatch.context() as patch:
        patch.setattr(Space, "find", lambda *args: ((tmp_path / "a.png").write_bytes(new), find(*args))[1])
        assert torch.equal(features(tmp_path / "store", images, views), expected)
    for content, missed in ((seen, 0), (old if seen == new else new, max(1, views))):
        (tmp_path / "a.png").write_bytes(content)
        computed.clear()
        found = features(tmp_path / "store", images, views)
        assert sum(computed) == missed
        assert torch.equal(found, features(None, images, views))


def test_the_same_picture_twice(tmp_path: Path) -> None:
    images = files().take([3, 3, 4, 3])
    assert torch.equal(features(tmp_path, images, views=2), features(None, images, views=2))
    assert spaces(FeatureStore(tmp_path))[0].count() == (2, 4)


def test_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features(tmp_path, views=2)
    features(tmp_path, files().take(range(10)), views=3)
    (space,) = spaces(FeatureStore(tmp_path))
    assert space.count() == (30, 70)
    assert (space.usage.found, space.usage.computed) == (20, 70)
    assert space.usage.saved > 0
    assert space.about["name"] == backbone().name
    assert space.backbone == backbone().fingerprint
    with (space.folder / usage.USAGE).open("a") as file:
        file.write('{"time": 1, "fou')  # a process was killed
    assert usage.read_usage(space.folder).found == 20
    monkeypatch.setattr(usage, "LARGE", 10)
    features(tmp_path, views=2)
    assert len((space.folder / usage.USAGE).read_text().splitlines()) == 1
    assert usage.read_usage(space.folder).computed == 70


def test_prune_by_backbone_age_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None) -> None:
    store, other = FeatureStore(tmp_path / "store"), changed_weights(tmp_path / "changed")
    features(store, views=2)
    features(store, views=2, using=other)
    assert to_prune(store) == []
    assert to_prune(store, older_than=3600) == []
    sizes = {space.backbone: space.size for space in spaces(store)}
    assert sum(file.size for file in to_prune(store, backbone=other.fingerprint[:12])) == sizes[other.fingerprint]
    with pytest.raises(CalpromptError, match="no features of backbone 'vit'; it has those of"):
        to_prune(store, backbone="vit")
    assert len(to_prune(store, older_than=-1)) == 8
    first = to_prune(store, max_size=sum(sizes.values()) - 1)
    assert [file.path.parent.name for file in first] == [spaces(store)[-1].folder.name]  # the one used less recently
    remove(to_prune(store, max_size=sizes[other.fingerprint]))
    assert [space.backbone for space in spaces(store)] == [other.fingerprint]
    remove(to_prune(store, older_than=-1))
    assert list(store.folder.iterdir()) == []
    assert spaces(FeatureStore(tmp_path / "nothing")) == []


@pytest.mark.parametrize(("used", "written"), [(50, 0), (0, 50)])
def test_prune_by_size_begins_with_the_oldest_of_what_was_not_used_for_longest(
    tmp_path: Path, at_once: None, used: int, written: int
) -> None:
    store, other = FeatureStore(tmp_path / "store"), changed_weights(tmp_path / "changed")
    features(store, views=2)
    (ours,) = spaces(store)
    features(store, views=2, using=other)
    (theirs,) = (space for space in spaces(store) if space.backbone == other.fingerprint)
    for space, last_use, begun in ((ours, used, written), (theirs, 20, 10)):
        (space.folder / usage.USAGE).write_text(json.dumps({"time": last_use}) + "\n")
        for file, after in zip(space.shards, (3, 1, 4, 2), strict=True):
            os.utime(file.path, (begun + after, begun + after))
    going = [file.path for file in to_prune(store, max_size=0)]
    assert going == [space.shards[number].path for space in (theirs, ours) for number in (1, 3, 0, 2)]


def test_prune_removes_what_is_damaged_or_left_behind_and_nothing_of_others(tmp_path: Path) -> None:
    features(tmp_path)
    folder = only_shard(tmp_path).parent
    for path in (folder / ".1.safetensors.tmp", folder / ".2.safetensors.tmp", folder / "3.damaged"):
        path.write_text("half")
    os.utime(folder / ".1.safetensors.tmp", (0, 0))
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mine.safetensors").write_text("")
    remove(to_prune(FeatureStore(tmp_path)))
    left = sorted(path.name for path in folder.iterdir())
    assert left == [".2.safetensors.tmp", only_shard_name(folder), "space.json", "usage.jsonl"]
    remove(to_prune(FeatureStore(tmp_path), max_size=0))
    assert (tmp_path / "letters" / "mine.safetensors").exists()


def only_shard_name(folder: Path) -> str:
    return next(path.name for path in folder.glob("[0-9a-f]*.safetensors"))


def test_prune_under_readers_and_writers(tmp_path: Path, at_once: None) -> None:
    expected, stop = features(None, views=4), threading.Event()

    def keep_pruning() -> None:
        while not stop.is_set():
            remove(to_prune(FeatureStore(tmp_path), max_size=5000))

    pruner = threading.Thread(target=keep_pruning)
    pruner.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store = FeatureStore(tmp_path)
            for _ in range(10):
                assert torch.equal(features(store, views=4), expected)
    finally:
        stop.set()
        pruner.join()


@dataclass(frozen=True)
class Made:
    """Any number of images, of which it is known how many are held, read or decoded."""

    count: int
    held: ClassVar[list[int]] = [0, 0]  # now, at most
    has_pixels: ClassVar[bool] = True
    augmented: ClassVar[bool] = False

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> "MadePicture":
        return counted(MadePicture(hashlib.sha256(str(index).encode()).hexdigest()))


@dataclass(eq=False)
class MadePicture:
    digest: str
    nbytes: int = 100

    def views(self, *_: object) -> list[torch.Tensor]:
        return [counted(torch.zeros(3, samples.SIZE, samples.SIZE))]


def counted(made: Any) -> Any:
    Made.held[0] += 1
    Made.held[1] = max(Made.held)
    weakref.finalize(made, let_go)
    return made


def let_go() -> None:
    Made.held[0] -= 1


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    row = torch.arange(samples.EMBED).float()
    monkeypatch.setattr(Backbone, "encode_image", lambda self, pixels, prompts=None: row.expand(len(pixels), -1))
    yield
    Made.held[:] = [0, 0]


def test_memory_does_not_grow_with_the_set(tmp_path: Path, instant: None) -> None:
    most = []
    for count in (1000, 5000):
        Made.held[:] = [0, 0]
        store = FeatureStore(tmp_path)
        features(store, Made(count))
        assert Made.held[0] == 0
        most.append(Made.held[1])
        assert not any(space._waiting for space in store._spaces.values())
    # of each thread two batches waiting and one at work, then one whose features are taken and one coming
    assert max(most) <= 64 * (3 * torch.get_num_threads() + 2)
    assert spaces(FeatureStore(tmp_path))[0].count() == (5000, 5000)


def test_a_store_goes_to_another_process_as_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FeatureStore(tmp_path)
    features(store)
    assert pickle.loads(pickle.dumps(store)).folder == tmp_path
    monkeypatch.setenv("CALPROMPT_CACHE", str(tmp_path / "there"))
    assert FeatureStore().folder == tmp_path / "there" / "features"
    monkeypatch.delenv("CALPROMPT_CACHE")
    assert FeatureStore().folder == Path.home() / ".cache" / "calprompt" / "features"


def test_a_space_tells_what_it_depends_on(tmp_path: Path) -> None:
    features(tmp_path)
    about = json.loads((only_shard(tmp_path).parent / "space.json").read_text())
    expected = {"name", "extraction", "backbone", "preprocessing", "images", "dtype", "autocast", "device", "matmul"}
    assert set(about) == expected | {"batch", "libraries"}
