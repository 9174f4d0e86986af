"""The index of a feature store: many shards, damage, other processes; never a wrong feature, none lost."""

import hashlib
import os
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from calprompt.features.store import FeatureStore, Space, compaction, shard_files, shards
from calprompt.features.store.housekeeping import remove, spaces, to_prune, verify
from calprompt.features.store.index import INDEX, Index, build_index, hashes, open_index, write_index
from calprompt.features.store.listing import Listing
from calprompt.features.store.merging import merge_store
from calprompt.features.store.shards import KEY, key

OLD = Path(__file__).parent / "old_store"
ABOUT = {"backbone": "b"}
WIDTH = 8


def keys_of(numbers: range | list[int]) -> list[bytes]:
    """A third of the keys differ from another in the view only, and a third has views that hash alike."""
    views = (0, 1, 65_537)
    return [key(hashlib.sha256(str(number // 3).encode()).hexdigest(), views[number % 3]) for number in numbers]


def rows_of(keys: list[bytes]) -> torch.Tensor:
    return torch.tensor([list(hashlib.sha256(each).digest()[:WIDTH]) for each in keys]).float() / 255


def space(folder: Path) -> Space:
    return FeatureStore(folder).space(ABOUT, "tiny")


def put(place: Space, numbers: range | list[int]) -> None:
    place.add(keys_of(numbers), rows_of(keys_of(numbers)))
    place.flush()


def assert_has_exactly(place: Space, expected: set[int], among: int) -> None:
    keys = keys_of(range(among))
    found, rows = place.find(keys)
    assert set(found) == expected
    assert place.contains(keys).tolist() == [number in expected for number in range(among)]
    if found:
        assert torch.equal(rows, rows_of([keys[number] for number in found]))


def index_of(folder: Path) -> Path:
    (path,) = folder.glob(f"*{INDEX}")
    return path


def merge_all(place: Space) -> None:
    while place.compact():
        pass


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixty features in twenty shards that are not merged, and an index of them."""
    monkeypatch.setattr(compaction, "FAN", 99)
    place = space(tmp_path)
    for start in range(0, 60, 3):
        put(place, range(start, start + 3))
    assert_has_exactly(space(tmp_path), set(range(60)), 70)
    assert index_of(place.folder)
    return place.folder


def test_only_the_shards_that_are_needed_are_opened(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    real = shard_files.open_shard
    monkeypatch.setattr(shard_files, "open_shard", lambda path, name: (opened.append(path), real(path, name))[1])
    listed = open_index(index_of(many), many.name).names
    outside = len(list(many.glob("*.safetensors"))) - len(listed)
    place = space(many.parent)
    place.find(keys_of([0]))
    assert len(opened) <= 1 + outside


def test_an_index_can_be_deleted_at_any_time(many: Path) -> None:
    place = space(many.parent)
    place.find(keys_of([0]))
    index_of(many).unlink()
    assert_has_exactly(place, set(range(60)), 70)
    assert_has_exactly(space(many.parent), set(range(60)), 70)
    assert index_of(many)


@pytest.mark.parametrize("harm", ["bit", "cut", "empty", "text", "format", "of other shards"])
def test_a_damaged_index_is_made_again(many: Path, harm: str, tmp_path: Path) -> None:
    path = index_of(many)
    data = bytearray(path.read_bytes())
    data[len(data) - 200] ^= 8
    other = {"bit": data, "cut": data[:-9], "empty": b"", "text": b"no index"}
    other["format"] = path.read_bytes().replace(b'"format":"1"', b'"format":"2"')
    if harm == "of other shards":  # right in itself, but the rows are not what the shards have
        index = open_index(path, many.name)
        path.unlink()
        path = many / write_index(many, many.name, Index(index.names, index.hashes, np.roll(index.places, 1)))
    else:
        path.write_bytes(other[harm])
    place = space(many.parent)
    with pytest.warns(UserWarning, match=f"{path.name} is damaged") as told:
        assert_has_exactly(place, set(range(60)), 70)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_has_exactly(space(many.parent), set(range(60)), 70)


def test_verify_names_a_damaged_index(many: Path) -> None:
    path = index_of(many)
    path.write_bytes(b"no index")
    problems = [(file.path, said) for file, said in verify(FeatureStore(many.parent)) if said]
    assert [each for each, _ in problems] == [path]
    assert [said for _, said in verify(FeatureStore(many.parent)) if said] == []


def test_a_shard_replaced_behind_the_index(many: Path) -> None:
    """Somebody restores a file of that name from elsewhere: its own keys count."""
    place = space(many.parent)
    names = sorted(path.name for path in many.glob("*.safetensors"))
    (many / names[0]).write_bytes((many / names[1]).read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, rows = place.find(keys_of(range(60)))
    assert len(found) == 57
    assert torch.equal(rows, rows_of(keys_of(found)))


def test_shards_that_are_gone_are_passed_over(many: Path) -> None:
    place = space(many.parent)
    place.find(keys_of([0]))
    files = spaces(FeatureStore(many.parent))[0].shards[:5]
    remove(list(files))
    found, rows = place.find(keys_of(range(60)))
    assert len(found) == 45
    assert torch.equal(rows, rows_of(keys_of(found)))
    assert spaces(FeatureStore(many.parent))[0].count()[0] == 15


def test_a_store_that_cannot_be_written_to(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As whoever is not root sees it: the index is made in memory, and damage is passed over, once."""
    index_of(many).unlink()
    bad = next(many.glob("*.safetensors"))
    bad.write_bytes(bad.read_bytes()[:-1])
    before = {path: path.read_bytes() for path in many.iterdir()}

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("replace", "rename", "unlink"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr("calprompt.files.open", refuse, raising=False)
    place = space(many.parent)
    with pytest.warns(UserWarning, match="is damaged") as told:
        place.find(keys_of(range(60)))
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, rows = place.find(keys_of(range(60)))
    assert len(found) == 57
    assert torch.equal(rows, rows_of(keys_of(found)))
    assert {path: path.read_bytes() for path in many.iterdir() if path.name != ".lock"} == before


def test_a_name_that_leads_nowhere_is_passed_over(many: Path) -> None:
    (many / "0000000000000000.safetensors").symlink_to(many / "nowhere")
    assert_has_exactly(space(many.parent), set(range(60)), 70)


def test_a_store_of_the_first_format(tmp_path: Path) -> None:
    """Written before there was an index or a checksum of every feature."""
    shutil.copytree(OLD, tmp_path / "old")
    about = {
        "extraction": 1,
        "backbone": "57a98e795f21",
        "preprocessing": {"size": 32, "interpolation": "bicubic", "crop": 0.5},
        "dtype": "float32",
    }
    place = FeatureStore(tmp_path / "old").space(about, "tiny")
    digests = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(12)]
    keys = [key(digest, view) for digest in digests for view in (0, 1, 256)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, rows = place.find(keys)
        assert found == list(range(36))
        assert torch.equal(rows, rows_of(keys))
        assert spaces(place.store)[0].count() == (12, 36)
        assert [said for _, said in verify(place.store)] == [""] * 3
        place.add([key("ab" * 32, 0)], rows_of([b"new"]))
        place.flush()
        assert torch.equal(place.find([*keys, key("ab" * 32, 0)])[1], rows_of([*keys, b"new"]))
    path = max(place.folder.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[-300] ^= 1
    path.write_bytes(data)
    with pytest.warns(UserWarning, match=f"{path.name} is damaged"):
        found, rows = FeatureStore(tmp_path / "old").space(about, "tiny").find(keys)
    assert torch.equal(rows, rows_of([keys[number] for number in found]))


def test_hashes_keep_the_views_of_an_image_together() -> None:
    numbers = hashes(np.array(keys_of(range(30)), dtype=KEY))
    assert len(np.unique(numbers)) == 20  # views 1 and 65,537 hash alike
    assert len(np.unique(numbers >> np.uint64(16))) == 10


def test_an_index_takes_over_what_is_still_right(many: Path) -> None:
    place = space(many.parent)
    place.files.refresh()
    shards = list(place.files.all())
    whole, part = build_index(shards), build_index(shards[:12])
    left = frozenset(shard.path.name for shard in shards[3:12])
    both = build_index(shards[12:], part, left)
    assert sorted(both.names) == sorted(shard.path.name for shard in shards[3:])
    assert np.array_equal(both.hashes, np.sort(whole.only(frozenset(both.names))))


def test_a_listing_is_read_again_when_the_folder_changes(tmp_path: Path) -> None:
    listing = Listing(tmp_path)
    os.utime(tmp_path, (1000.5, 1000.5))
    assert listing.refresh()
    assert not listing.refresh()
    (tmp_path / "a").touch()
    assert listing.refresh()
    assert listing.names == {"a"}
    assert listing.refresh()  # a moment ago: another file may have come in the same tick of the clock
    os.utime(tmp_path, (1001.5, 1001.5))
    assert listing.refresh()
    assert not listing.refresh()
    listing.forget()
    assert listing.refresh()


def test_groups_of_about_the_same_size_are_merged_up_to_the_largest() -> None:
    small = {f"s{number:02}": 1000 + number for number in range(15)}
    assert compaction.group_to_merge(small) == []
    assert sorted(compaction.group_to_merge({**small, "s15": 1015})) == sorted({**small, "s15": 1})
    large = compaction.LARGEST
    assert compaction.group_to_merge({"a": large // 2, "b": large}) == []
    assert compaction.group_to_merge({"a": large // 3, "b": large // 3 + 1, "c": large // 2 - 1}) == ["a", "b"]
    medium = {str(number): large // 100 for number in range(150)}
    assert len(compaction.group_to_merge(medium)) == 100


def test_a_merged_shard_is_as_right_as_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FAN", 99)
    place = space(tmp_path)
    for start in range(0, 12, 3):
        put(place, range(start, start + 4))
    bad = max(place.folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
    data = bytearray(bad.read_bytes())
    data[len(data) - 4 * 44 - 5] ^= 1  # of the last feature
    bad.write_bytes(data)
    monkeypatch.setattr(compaction, "FAN", 2)
    with pytest.warns(UserWarning, match=f"{bad.name} is damaged"):
        merge_all(space(tmp_path))
    found, rows = space(tmp_path).find(keys_of(range(13)))
    assert len(found) == 12
    assert torch.equal(rows, rows_of(keys_of(found)))
    assert [said for _, said in verify(FeatureStore(tmp_path)) if said] == []


numbers = st.lists(st.integers(0, 39), min_size=1, max_size=6)
steps = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 1), numbers),
    st.tuples(st.just("get"), st.integers(0, 1), numbers),
    st.tuples(st.just("merge"), st.integers(0, 1), numbers),
    st.tuples(st.just("compact"), st.integers(0, 1), st.none()),
    st.tuples(st.just("delete index"), st.just(0), st.none()),
    st.tuples(st.just("damage index"), st.just(0), st.integers(0, 2000)),
    st.tuples(st.just("open again"), st.integers(0, 1), st.none()),
    st.tuples(st.just("prune"), st.just(0), st.none()),
)


@settings(max_examples=60)
@given(sequence=st.lists(steps, max_size=25), outside=st.integers(0, 3), fan=st.integers(2, 4))
def test_two_handles_are_one_dictionary(sequence: list[tuple[str, int, object]], outside: int, fan: int) -> None:
    expected: set[int] = set()
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(shard_files, "OUTSIDE", outside)
        patch.setattr(compaction, "FAN", fan)
        patch.setattr(compaction, "GRACE", -1.0)
        patch.setattr(os, "fsync", lambda file: None)
        warnings.filterwarnings("ignore", message=".*index is damaged")
        folder = Path(name) / "store"
        handles = [space(folder), space(folder)]
        for count, (what, which, value) in enumerate(sequence):
            handle, indices = handles[which], list(handles[0].folder.glob(f"*{INDEX}"))
            if what == "put":
                put(handle, value)
                expected |= set(value)
            elif what == "get":
                chosen = sorted(set(value))
                found, rows = handle.find(keys_of(chosen))
                assert {chosen[place] for place in found} == set(chosen) & expected
                assert not found or torch.equal(rows, rows_of([keys_of(chosen)[place] for place in found]))
            elif what == "merge":
                put(space(Path(name) / str(count)), value)
                report = merge_store(Path(name) / str(count), handle.store)
                assert (report.copied, report.same) == (len(set(value) - expected), len(set(value) & expected))
                expected |= set(value)
            elif what == "compact":
                handle.compact()
            elif what == "delete index":
                for index in indices:
                    index.unlink()
            elif what == "damage index":
                for index in indices:
                    data = bytearray(index.read_bytes())
                    data[value % len(data)] ^= 1
                    index.write_bytes(data)
            elif what == "open again":
                handles[which] = space(folder)
            elif what == "prune":
                remove(to_prune(handles[0].store))
        for handle in (*handles, space(folder)):
            assert_has_exactly(handle, expected, 40)
        assert not [said for file, said in verify(handles[0].store) if said and file.path.suffix != INDEX]


@pytest.mark.parametrize("seed", range(3))
def test_writers_killed_at_any_instant_lose_nothing_they_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Two processes at a time put, merge and index; each notes what it has put once that is written."""
    monkeypatch.setattr(shard_files, "OUTSIDE", 2)
    monkeypatch.setattr(compaction, "FAN", 3)
    monkeypatch.setattr(compaction, "GRACE", 0.05)
    monkeypatch.setattr(os, "fsync", lambda file: None)  # processes are killed here, not the machine
    random, store = np.random.default_rng(seed), tmp_path / "store"
    noted = [tmp_path / f"{number}.txt" for number in range(8)]

    def work(number: int) -> None:
        place = space(store)
        with noted[number].open("a", buffering=1) as log:
            for start in range(number * 1000, number * 1000 + 1000, 2):
                put(place, [start, start + 1])
                log.write(f"{start}\n")
                before = [int(line) for line in noted[number].read_text().splitlines()]
                found, rows = place.find(keys_of(before))
                assert len(found) == len(before)
                assert torch.equal(rows, rows_of(keys_of(before)))

    for pair in range(0, len(noted), 2):
        children = []
        for number in (pair, pair + 1):
            child = os.fork()
            if child == 0:
                try:
                    work(number)
                except BaseException:
                    (tmp_path / "problem.txt").write_text(traceback.format_exc())
                finally:
                    os._exit(1)
            children.append(child)
        time.sleep(float(random.uniform(0.1, 0.4)))
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    problem = tmp_path / "problem.txt"
    assert not problem.exists(), problem.read_text()
    starts = [int(line) for path in noted for line in path.read_text().splitlines() if path.exists()]
    promised = sorted({number for start in starts for number in (start, start + 1)})
    assert promised
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, rows = space(store).find(keys_of(promised))
    assert len(found) == len(promised)
    assert torch.equal(rows, rows_of(keys_of(promised)))
    assert [said for _, said in verify(FeatureStore(store)) if said] == []


def test_a_reader_at_work_while_others_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FAN", 2)
    monkeypatch.setattr(compaction, "GRACE", -1.0)  # files vanish as soon as they can
    monkeypatch.setattr(shard_files, "OUTSIDE", 1)
    monkeypatch.setattr(os, "fsync", lambda file: None)
    put(space(tmp_path), range(30))
    child = os.fork()
    if child == 0:
        try:
            place = space(tmp_path)
            for start in range(30, 90, 2):
                put(place, range(start, start + 2))
        finally:
            os._exit(0)
    place = space(tmp_path)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        found, rows = place.find(keys_of(range(90)))
        assert set(range(30)) <= set(found)
        assert torch.equal(rows, rows_of(keys_of(found)))
    assert_has_exactly(place, set(range(90)), 95)


def test_a_shard_that_vanishes_while_it_is_opened(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library that maps a file opens it more than once."""
    opened = shard_files.open_shard

    def vanishing(path: Path, name: str) -> object:
        monkeypatch.setattr(shard_files, "open_shard", opened)
        monkeypatch.setattr(compaction, "FAN", 2)
        monkeypatch.setattr(shards, "safe_open", lambda *args, **settings: Vanishing(path, many))
        return opened(path, name)

    class Vanishing:
        def __init__(self, path: Path, folder: Path) -> None:
            monkeypatch.setattr(shards, "safe_open", safe_open)
            self.file = safe_open(path, framework="pt")
            merge_all(space(folder.parent))

        def __enter__(self) -> object:
            return self.file.__enter__()

        def __exit__(self, *args: object) -> None:
            self.file.__exit__(*args)

    place = space(many.parent)
    monkeypatch.setattr(shard_files, "open_shard", vanishing)
    assert_has_exactly(place, set(range(60)), 70)
