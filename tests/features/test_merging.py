"""Stores of several machines: what is missing is copied, what is damaged is named, what differs is reported."""

import hashlib
import os
import shutil
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import samples
from calprompt.errors import CalpromptError, NotFoundError, SettingError
from calprompt.features.store import FeatureStore, Space, compaction, merge_store, merging
from calprompt.features.store.housekeeping import spaces, verify
from calprompt.features.store.shards import key

ABOUT = {"backbone": "b", "dtype": "float32"}


def keys_of(numbers: range, views: int = 1) -> list[bytes]:
    return [key(hashlib.sha256(str(number).encode()).hexdigest(), view) for number in numbers for view in range(views)]


def rows_of(keys: list[bytes], width: int = 8) -> torch.Tensor:
    return torch.stack([torch.tensor(list(hashlib.sha256(each).digest()[:width])).float() / 255 for each in keys])


def space(folder: Path, about: dict[str, str] = ABOUT) -> Space:
    return FeatureStore(folder).space(about, "tiny")


def fill(folder: Path, numbers: range, about: dict[str, str] = ABOUT, scale: float = 1.0) -> None:
    place = space(folder, about)
    place.add(keys_of(numbers), rows_of(keys_of(numbers)) * scale)
    place.flush()


def assert_has(folder: Path, numbers: range, about: dict[str, str] = ABOUT) -> None:
    found, rows = space(folder, about).find(keys_of(numbers))
    assert found == list(range(len(numbers)))
    assert torch.equal(rows, rows_of(keys_of(numbers)))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_missing_is_copied(tmp_path: Path) -> None:
    other = {"backbone": "c", "dtype": "float32"}
    fill(tmp_path / "a", range(20))
    fill(tmp_path / "b", range(10, 30))
    fill(tmp_path / "b", range(25, 40))
    fill(tmp_path / "b", range(7), other)
    before = contents(tmp_path / "b")
    report = merge_store(tmp_path / "b", FeatureStore(tmp_path / "a"))
    assert (report.copied, report.rounded, report.n_conflicts, report.damaged) == (27, 0, 0, [])
    assert report.same == 10 + 5  # here, and twice there
    assert contents(tmp_path / "b") == before
    assert_has(tmp_path / "a", range(40))
    assert_has(tmp_path / "a", range(7), other)
    assert {each.about["name"] for each in spaces(FeatureStore(tmp_path / "a"))} == {"tiny"}
    again = merge_store(tmp_path / "b", FeatureStore(tmp_path / "a"))
    assert (again.copied, again.same) == (0, 42)


def test_the_cache_folder_stands_for_its_store(tmp_path: Path) -> None:
    fill(tmp_path / "cache" / "features", range(5))
    assert merge_store(tmp_path / "cache", FeatureStore(tmp_path / "a")).copied == 5


def test_a_store_is_not_merged_into_itself_or_from_nowhere(tmp_path: Path) -> None:
    fill(tmp_path / "a", range(5))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(SettingError, match="is the store that would get the features"):
        merge_store(tmp_path / "link", FeatureStore(tmp_path / "a"))
    for wrong in ("nowhere", "."):
        with pytest.raises(NotFoundError, match="is no feature store"):
            merge_store(tmp_path / wrong, FeatureStore(tmp_path / "a"))


def test_damaged_shards_are_named_and_left_out(tmp_path: Path) -> None:
    fill(tmp_path / "b", range(5))
    (bad,) = (tmp_path / "b").rglob("*.safetensors")
    fill(tmp_path / "b", range(5, 9))
    data = bytearray(bad.read_bytes())
    data[len(data) // 2] ^= 1
    bad.write_bytes(data)
    (bad.parent / "space.json").write_text('{"name": "of something else"}')
    report = merge_store(tmp_path / "b", FeatureStore(tmp_path / "a"))
    assert report.damaged == [
        f"{bad.parent / 'space.json'} (it does not describe its folder)",
        f"{bad} (its checksum is wrong)",
    ]
    assert report.copied == 4
    assert bad.exists()
    assert_has(tmp_path / "a", range(5, 9))
    assert space(tmp_path / "a").find(keys_of(range(5)))[0] == []
    assert [said for _, said in verify(FeatureStore(tmp_path / "a")) if said] == []


def test_rounding_is_counted_and_more_is_a_conflict(tmp_path: Path) -> None:
    fill(tmp_path / "a", range(10))
    fill(tmp_path / "b", range(4), scale=1 + 2**-20)
    fill(tmp_path / "b", range(4, 6), scale=1.01)
    report = merge_store(tmp_path / "b", FeatureStore(tmp_path / "a"))
    assert (report.copied, report.same, report.rounded, report.n_conflicts) == (0, 0, 4, 2)
    assert report.largest == pytest.approx(2**-20, rel=0.2)
    (here,) = (tmp_path / "a").rglob("*.safetensors")
    for conflict in report.conflicts:
        assert (conflict.here, conflict.there.parents[1], conflict.view) == (here, tmp_path / "b", 0)
        assert conflict.difference == pytest.approx(0.01, rel=0.05)
        assert f"{here} and {conflict.there}" in str(conflict)
    assert_has(tmp_path / "a", range(10))


@pytest.mark.parametrize(
    ("about", "limit"),
    [
        ({}, 2**-15),
        ({"dtype": "float32", "matmul": "high"}, 2**-6),
        ({"dtype": "float32", "device": "cuda x86_64 A100 tf32"}, 2**-6),
        ({"dtype": "float32", "autocast": "bfloat16"}, 2**-3),
        ({"dtype": "float16"}, 2**-6),
        ({"dtype": "float64"}, 2**-44),
    ],
)
def test_what_rounding_explains_follows_from_the_precision(about: dict[str, str], limit: float) -> None:
    assert merging.rounding_limit(about, torch.float32) == limit


def test_nan_and_other_kinds_are_no_rounding() -> None:
    nan = torch.tensor([[float("nan"), 1.0]])
    assert merging.differences(nan, nan).tolist() == [0.0]
    assert np.isinf(merging.differences(nan, torch.ones(1, 2)))
    assert np.isinf(merging.differences(torch.ones(1, 2), torch.ones(1, 3)))
    assert merging.differences(torch.zeros(1, 2), -torch.zeros(1, 2))[0] > 0


def test_a_full_disk_is_an_error_and_the_rest_is_copied_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "TOGETHER", 1)  # a shard at a time
    for start in range(0, 30, 10):
        fill(tmp_path / "b", range(start, start + 10))
    fsync, calls = os.fsync, 0

    def full(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 4:  # of space.json and its folder, of the first shard and its folder
            raise OSError(28, "No space left on device")
        fsync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            CalpromptError, match="No space left on device; 10 features were copied, and the same comma"
        ):
            merge_store(tmp_path / "b", FeatureStore(tmp_path / "a"))
    assert not [path for path in (tmp_path / "a").rglob(".*") if path.name != ".lock"]
    assert merge_store(tmp_path / "b", FeatureStore(tmp_path / "a")).copied == 20
    assert_has(tmp_path / "a", range(30))


def test_killed_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "TOGETHER", 1)
    monkeypatch.setattr(compaction, "FAN", 2)
    for start in range(0, 12, 4):
        with monkeypatch.context() as patch:
            patch.setattr(compaction, "FAN", 99)
            fill(tmp_path / "b", range(start, start + 4))
    codes = []
    for at in range(1, 12):
        place = tmp_path / f"a{at}"
        child = os.fork()
        if child == 0:
            os.replace = samples.dying(at, half=at % 2 == 0)  # type: ignore[assignment]
            merge_store(tmp_path / "b", FeatureStore(place))
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        before = len(space(place).find(keys_of(range(12)))[0])
        assert merge_store(tmp_path / "b", FeatureStore(place)).copied == 12 - before
        assert_has(place, range(12))
        assert [said for _, said in verify(FeatureStore(place)) if said] == []
    assert -signal.SIGKILL in codes
    assert codes[-1] == 0


def test_a_store_that_others_are_merging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FAN", 99)
    for number in range(6):
        fill(tmp_path / "b", range(number, number + 1))
    opened = merging.open_shard

    def at_work(path: Path, name: str) -> object:
        monkeypatch.setattr(merging, "open_shard", opened)
        monkeypatch.setattr(compaction, "FAN", 2)
        assert space(tmp_path / "b").compact()
        return opened(path, name)

    monkeypatch.setattr(merging, "open_shard", at_work)
    report = merge_store(tmp_path / "b", FeatureStore(tmp_path / "a"))
    assert (report.copied, report.damaged) == (6, [])
    assert_has(tmp_path / "a", range(6))


def test_an_old_store_is_merged(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = merge_store(Path(__file__).parent / "old_store", FeatureStore(tmp_path))
        shutil.rmtree(tmp_path / "none", ignore_errors=True)
    assert (report.copied, report.damaged, report.n_conflicts) == (36, [], 0)
