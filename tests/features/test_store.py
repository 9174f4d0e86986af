"""The feature store: the right features or none, whoever else reads, writes, damages or prunes it meanwhile."""

import hashlib
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
from calprompt.clip.backbone import Backbone
from calprompt.clip.load import load_backbone
from calprompt.data.checks import UnreadableImages
from calprompt.data.images import FeatureRows, ImageFiles, ImageRows
from calprompt.errors import CalpromptError
from calprompt.features import frozen
from calprompt.features import store as store_file
from calprompt.features.frozen import frozen_features
from calprompt.features.housekeeping import remove, spaces, to_prune, unused, verify
from calprompt.features.store import FeatureFile, FeatureStore, Space, key
from calprompt.progress import FeatureProgress, silent
from calprompt.runs.execute import run

backbone, files = samples.loaded, samples.picture_files


def features(store: FeatureStore | Path | None, images=None, views: int = 0, using: Backbone | None = None):
    opened = FeatureStore(store) if isinstance(store, Path) else store
    images = files() if images is None else images
    try:
        return frozen_features(using or backbone(), images, views, unreadable=UnreadableImages(), store=opened)
    finally:
        if opened is not store:
            opened.close()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each call of the tower was asked for."""
    calls: list[int] = []
    encode = frozen.encode
    monkeypatch.setattr(frozen, "encode", lambda using, pixels: (calls.append(len(pixels)), encode(using, pixels))[1])
    return calls


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is written."""
    monkeypatch.setattr(store_file, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(frozen, "LARGE_TOWER", 0)  # batches of 16


def test_stored_features_are_read_again(tmp_path: Path, computed: list[int]) -> None:
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


def test_changed_inputs_never_hit_the_store(
    tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, root = tmp_path / "store", samples.picture_folder(tmp_path / "photos", each=2)
    paths = [f"{name}/0.png" for name in samples.NAMES]
    images = ImageFiles(root, tuple(paths))

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
    monkeypatch.setattr(frozen, "EXTRACTION", frozen.EXTRACTION + 1)
    assert [missed(), missed()] == [6, 0]
    monkeypatch.setattr(frozen, "_versions", lambda *names: dict.fromkeys(names, "another"))
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


def only_file(store: Path) -> Path:
    (path,) = store.glob("*.sqlite")
    return path


def place_of(path: Path, what: bytes) -> int:
    """Where something stands in a file."""
    place = path.read_bytes().find(what)
    assert place > 0
    return place


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("what", ["feature", "checksum", "key"])
def test_a_damaged_feature_is_computed_again(tmp_path: Path, what: str, computed: list[int]) -> None:
    expected = features(tmp_path)
    path, digest = only_file(tmp_path), key(files().read(7).digest, 0)
    at = place_of(path, digest)
    flip(path, at + {"feature": 36 + 8 + 20, "checksum": 36 + 3, "key": 20}[what])
    computed.clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert torch.equal(features(tmp_path), expected)
    assert [str(each.message) for each in told] == [f"{path}: 1 damaged features are computed again"] * (what != "key")
    assert sum(computed) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(features(tmp_path), expected)
    assert sum(computed) == 1


@pytest.mark.parametrize("harm", ["cut", "text", "empty", "first page", "another space's"])
def test_a_damaged_file_is_set_aside(tmp_path: Path, harm: str, computed: list[int]) -> None:
    store, expected = tmp_path / "store", features(None)
    features(store)
    path = only_file(store)
    data = bytearray(path.read_bytes())
    other = {"cut": data[: len(data) // 2], "text": b"this is no database" * 100, "empty": b""}
    if harm == "another space's":
        features(tmp_path / "other", using=backbone().view(autocast=torch.bfloat16))
        other[harm] = bytearray(only_file(tmp_path / "other").read_bytes())
    path.write_bytes(other.get(harm, bytes(200) + data[200:]))
    computed.clear()
    with pytest.warns(UserWarning, match="damaged"):
        assert torch.equal(features(store), expected)
    assert sum(computed) == 30
    assert path.with_suffix(".damaged").exists() == (harm != "another space's")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(features(store), expected)
    assert sum(computed) == 30


def test_intact_features_of_a_damaged_file_are_kept(tmp_path: Path) -> None:
    """A page of the index is overwritten: all features are there, and none can be looked up."""
    space = FeatureStore(tmp_path).space({"about": "this"}, "tiny")
    keys = [key(hashlib.sha256(str(number).encode()).hexdigest(), 0) for number in range(3000)]
    rows = torch.randn(3000, 8)
    space.add(keys, rows)
    space.close()
    path = only_file(tmp_path)
    data = bytearray(path.read_bytes())
    index = [at for at in range(4096, len(data), 4096) if data[at] == 10]  # leaves of an index
    data[index[3] : index[3] + 2000] = bytes(2000)
    path.write_bytes(data)
    again = FeatureStore(tmp_path).space({"about": "this"}, "tiny")
    with pytest.warns(UserWarning, match="set aside as .*; 3000 of its features are kept"):
        again.find(keys)
    found, values = again.find(keys)
    assert len(found) == 3000
    assert torch.equal(values, rows)


@pytest.mark.parametrize("seed", range(12))
def test_no_flipped_bit_gives_a_wrong_feature(tmp_path: Path, seed: int) -> None:
    rng, about = np.random.default_rng(seed), {"about": "this"}
    keys = [key(hashlib.sha256(str(number // 3).encode()).hexdigest(), number % 3) for number in range(300)]
    rows = torch.arange(300 * 64).view(300, 64).float()
    space = FeatureStore(tmp_path).space(about, "tiny")
    space.add(keys, rows)
    space.close()
    path = only_file(tmp_path)
    data = bytearray(path.read_bytes())
    for place in rng.integers(0, len(data), 1 + 4 * seed).tolist():
        data[place] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            space = FeatureStore(tmp_path).space(about, "tiny")
            found, values = space.find(keys)
            assert not found or torch.equal(values, rows[found])
            space.add(keys, rows)
            space.close()
    assert space.find(keys)[0] == list(range(300))


def test_verify_names_what_is_damaged(tmp_path: Path) -> None:
    features(tmp_path)
    features(tmp_path, using=backbone().view(autocast=torch.bfloat16))
    assert [said for _, said in verify(FeatureStore(tmp_path))] == ["", ""]
    one, other = sorted(tmp_path.glob("*.sqlite"))
    flip(one, place_of(one, key(files().read(7).digest, 0)) + 36 + 8 + 20)
    other.write_bytes(b"this is no database" * 100)
    said = {file.path: text for file, text in verify(FeatureStore(tmp_path))}
    assert said == {one: "1 features have a wrong checksum", other: "file is not a database"}
    assert [said for _, said in verify(FeatureStore(tmp_path))] == [""]


def test_processes_of_several_machines_use_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not store_file.is_network(tmp_path)
    monkeypatch.setattr(store_file, "is_network", lambda folder: True)
    store = FeatureStore(tmp_path)
    expected = features(store)
    assert [path.suffix for path in tmp_path.iterdir()] == [".sqlite"]
    assert torch.equal(features(tmp_path), expected)


def test_file_systems_are_recognised_by_their_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = (
        "/dev/sda / ext4 rw 0 0\nserver:/x /mnt/all\\040data nfs4 rw 0 0\n/dev/sdb /mnt/all\\040data/local xfs rw 0 0\n"
    )
    monkeypatch.setattr(Path, "read_text", lambda path, **_: mounts)
    found = [
        store_file.is_network(Path(name))
        for name in ("/home", "/mnt/all data", "/mnt/all data/a", "/mnt/all data/local/a")
    ]
    assert found == [False, True, True, False]


def test_a_full_disk_is_only_a_warning(tmp_path: Path, at_once: None) -> None:
    expected, store = features(None), FeatureStore(tmp_path)
    features(store, files().take([0, 1, 2]))
    (space,) = store._spaces.values()
    connection = space._file._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")  # what SQLite answers then is what it answers on a full disk
    with pytest.warns(UserWarning, match="features are not stored.*database or disk is full") as told:
        assert torch.equal(features(store), expected)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(features(store), expected)
    assert 3 <= spaces(store)[0].features < 30
    assert [said for _, said in verify(FeatureStore(tmp_path))] == [""]


def test_a_read_only_folder_is_read(tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    features(tmp_path, files().take(range(10)))
    before = sorted(tmp_path.iterdir())
    computed.clear()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.warns(UserWarning, match="features are not stored.*it can only be read") as told:
        found = features(tmp_path)
    assert (len(told), sum(computed)) == (1, 20)
    assert sorted(tmp_path.iterdir()) == before
    assert torch.equal(found, features(None))


def test_a_damaged_file_in_a_read_only_folder_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = features(tmp_path)
    only_file(tmp_path).write_bytes(b"this is no database" * 100)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    store = FeatureStore(tmp_path)
    with pytest.warns(UserWarning, match="is damaged .* and not used") as told:
        assert torch.equal(features(store), expected)
    assert len(told) == 2  # and that nothing is stored
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(features(store), expected)


def test_a_forked_process_opens_its_own_connection(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path)
    expected = features(store)
    child = os.fork()
    if child == 0:
        same = torch.equal(features(store), expected)
        os._exit(0 if same and all(space._file._pid == os.getpid() for space in store._spaces.values()) else 1)
    assert samples.exit_code(child) == 0
    assert torch.equal(features(store), expected)


def test_a_folder_that_cannot_be_created_is_only_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="features are not stored"):
        assert torch.equal(features(tmp_path / "file" / "store"), features(None))


def test_features_of_another_process_are_seen(tmp_path: Path, computed: list[int]) -> None:
    mine = FeatureStore(tmp_path)
    features(mine, files().take(range(5)))
    features(tmp_path, files().take(range(5, 30)))
    computed.clear()
    features(mine)
    assert not computed
    only_file(tmp_path).unlink()
    features(tmp_path)  # another file in its place
    assert sum(computed) == 30
    features(mine, views=1)
    features(mine)
    assert sum(computed) == 60


def test_a_tower_on_another_device_is_run_by_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, callers = features(None, views=3), set()
    store = FeatureStore(tmp_path).space(frozen.description(backbone(), files()), "tiny")
    work = frozen.Extraction(backbone(), files(), range(1, 4), store, UnreadableImages())
    work.on_cpu = False
    encode = frozen.encode
    monkeypatch.setattr(frozen, "encode", lambda *both: (callers.add(threading.current_thread()), encode(*both))[1])
    assert torch.equal(work.run(FeatureProgress("features", 90, silent, stored=True)), expected)
    assert callers == {threading.current_thread()}


@pytest.mark.parametrize(("small", "reads"), [(1 << 16, 30), (0, 60)])
def test_small_files_are_read_once_and_large_ones_are_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int, reads: int
) -> None:
    expected, read, seen = features(None, views=2), ImageFiles.read, []
    monkeypatch.setattr(frozen, "SMALL_FILE", small)
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
    images, find = ImageFiles(tmp_path, ("a.png",)), Space.find
    old, new = ((files().root / files().paths[number]).read_bytes() for number in (0, 1))
    seen = old if small else new  # what was read first, or what was there when it was decoded
    (tmp_path / "a.png").write_bytes(seen)
    expected = features(None, images, views)
    (tmp_path / "a.png").write_bytes(old)
    monkeypatch.setattr(frozen, "SMALL_FILE", small)
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
    (space,) = spaces(FeatureStore(tmp_path))
    assert (space.images, space.features) == (2, 4)


def test_statistics(tmp_path: Path) -> None:
    features(tmp_path, views=2)
    features(tmp_path, files().take(range(10)), views=3)
    (space,) = spaces(FeatureStore(tmp_path))
    assert (space.images, space.features) == (30, 70)
    assert (space.usage.found, space.usage.computed) == (20, 70)
    assert space.usage.saved > 0
    assert space.name == backbone().name
    assert space.backbone == backbone().fingerprint


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
    assert len(to_prune(store, older_than=-1)) == 2
    first = to_prune(store, max_size=sum(sizes.values()) - 1)
    assert [file.backbone for file in first] == [backbone().fingerprint]  # the one used less recently
    remove(to_prune(store, max_size=sizes[other.fingerprint]))
    assert [space.backbone for space in spaces(store)] == [other.fingerprint]
    remove(to_prune(store, older_than=-1))
    assert list(store.folder.iterdir()) == []
    assert spaces(FeatureStore(tmp_path / "nothing")) == []


def test_prune_removes_only_damaged_and_abandoned_files(tmp_path: Path) -> None:
    features(tmp_path)
    for name in (".1.tmp", ".2.tmp", "3.damaged"):
        (tmp_path / name).write_text("half")
    os.utime(tmp_path / ".1.tmp", (0, 0))
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mine.safetensors").write_text("")
    assert {file.path for file in unused(FeatureStore(tmp_path))} == {tmp_path / ".1.tmp", tmp_path / "3.damaged"}
    remove(to_prune(FeatureStore(tmp_path)))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted([".2.tmp", only_file(tmp_path).name, "letters"])
    remove(to_prune(FeatureStore(tmp_path), max_size=0))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".2.tmp", "letters"]


def test_prune_under_readers_and_writers(tmp_path: Path, at_once: None) -> None:
    expected, stop = features(None, views=4), threading.Event()

    def keep_pruning() -> None:
        while not stop.wait(0.02):
            remove(to_prune(FeatureStore(tmp_path), max_size=5000))

    pruner = threading.Thread(target=keep_pruning)
    pruner.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store = FeatureStore(tmp_path)
            for _ in range(4):
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
    assert spaces(FeatureStore(tmp_path))[0].images == 5000


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
    about = FeatureFile.open(only_file(tmp_path)).about
    expected = {"extraction", "backbone", "preprocessing", "images", "dtype", "autocast", "device", "matmul"}
    assert set(about) == expected | {"batch", "libraries"}
