"""Stores of several machines: what is missing is copied, what is damaged is named, what differs is reported."""

import hashlib
import os
import signal
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch

import samples
from calprompt.errors import CalpromptError, NotFoundError, SettingError
from calprompt.features import housekeeping
from calprompt.features import store as store_file
from calprompt.features.housekeeping import merge_store, spaces, verify
from calprompt.features.store import FeatureFile, FeatureStore, Space, key

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
    place.close()


def assert_has(folder: Path, numbers: range, about: dict[str, str] = ABOUT) -> None:
    found, rows = space(folder, about).find(keys_of(numbers))
    assert found == list(range(len(numbers)))
    assert torch.equal(rows, rows_of(keys_of(numbers)))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_merging_copies_missing_features(tmp_path: Path) -> None:
    other = {"backbone": "c", "dtype": "float32"}
    fill(tmp_path / "a", range(20))
    fill(tmp_path / "b", range(10, 30))
    fill(tmp_path / "b", range(25, 40))
    fill(tmp_path / "b", range(7), other)
    before = contents(tmp_path / "b")
    report = merge_store(tmp_path / "b", FeatureStore(tmp_path / "a"))
    assert (report.copied, report.rounded, report.n_conflicts, report.damaged) == (27, 0, 0, [])
    assert report.same == 10
    assert contents(tmp_path / "b") == before
    assert_has(tmp_path / "a", range(40))
    assert_has(tmp_path / "a", range(7), other)
    assert {each.name for each in spaces(FeatureStore(tmp_path / "a"))} == {"tiny"}
    again = merge_store(tmp_path / "b", FeatureStore(tmp_path / "a"))
    assert (again.copied, again.same) == (0, 37)


def test_the_cache_folder_stands_for_its_store(tmp_path: Path) -> None:
    fill(tmp_path / "cache" / "features", range(5))
    assert merge_store(tmp_path / "cache", FeatureStore(tmp_path / "a")).copied == 5


def test_a_store_is_not_merged_into_itself_or_from_nowhere(tmp_path: Path) -> None:
    fill(tmp_path / "a", range(5))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(SettingError, match="is the store that would get the features"):
        merge_store(tmp_path / "link", FeatureStore(tmp_path / "a"))
    for wrong in ("nowhere", "."):
        with pytest.raises(NotFoundError, match="is not a feature store"):
            merge_store(tmp_path / wrong, FeatureStore(tmp_path / "a"))


def test_damaged_features_are_counted_and_left_out(tmp_path: Path) -> None:
    fill(tmp_path / "b", range(9))
    fill(tmp_path / "b", range(4), {"backbone": "c"})
    bad, other = space(tmp_path / "b").path, space(tmp_path / "b", {"backbone": "c"}).path
    data = bytearray(bad.read_bytes())
    data[data.find(keys_of(range(3, 4))[0]) + 36 + 8 + 5] ^= 1
    bad.write_bytes(data)
    moved = other.with_name(f"{'0' * 32}.sqlite")
    other.rename(moved)
    before = contents(tmp_path / "b")
    report = merge_store(tmp_path / "b", FeatureStore(tmp_path / "a"))
    assert report.damaged == [
        f"{moved} (it does not say what its features depend on)",
        f"{bad} (1 features are damaged)",
    ]
    assert report.copied == 8
    assert contents(tmp_path / "b") == before
    assert_has(tmp_path / "a", range(4, 9))
    assert space(tmp_path / "a").find(keys_of(range(3, 4)))[0] == []
    assert [said for _, said in verify(FeatureStore(tmp_path / "a")) if said] == []


def test_rounding_is_counted_and_more_is_a_conflict(tmp_path: Path) -> None:
    fill(tmp_path / "a", range(10))
    fill(tmp_path / "b", range(4), scale=1 + 2**-20)
    fill(tmp_path / "b", range(4, 6), scale=1.01)
    report = merge_store(tmp_path / "b", FeatureStore(tmp_path / "a"))
    assert (report.copied, report.same, report.rounded, report.n_conflicts) == (0, 0, 4, 2)
    assert report.largest == pytest.approx(2**-20, rel=0.2)
    here, there = (space(tmp_path / name).path for name in "ab")
    for conflict in report.conflicts:
        assert f"view 0: {here} and {there} are 0.0099 of their length apart" in conflict
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
def test_rounding_tolerance_follows_from_precision(about: dict[str, str], limit: float) -> None:
    assert housekeeping.rounding_limit(about, torch.float32) == limit


def test_nan_and_other_kinds_are_no_rounding() -> None:
    nan = torch.tensor([[float("nan"), 1.0]])
    assert housekeeping.differences(nan, nan).tolist() == [0.0]
    assert np.isinf(housekeeping.differences(nan, torch.ones(1, 2)))
    assert np.isinf(housekeeping.differences(torch.ones(1, 2), torch.ones(1, 3)))
    assert housekeeping.differences(torch.zeros(1, 2), -torch.zeros(1, 2))[0] > 0


def test_a_full_disk_is_an_error_and_the_rest_is_copied_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_file, "ROWS_PER_READ", 10)
    fill(tmp_path / "b", range(30))
    insert, calls = FeatureFile.insert, []

    def full(self: FeatureFile, rows: dict[bytes, bytes]) -> bool:
        calls.append(len(rows))
        if len(calls) > 1:
            raise sqlite3.OperationalError("database or disk is full")
        return insert(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(FeatureFile, "insert", full)
        with pytest.raises(CalpromptError, match="disk is full; 10 features were copied, and the same comma"):
            merge_store(tmp_path / "b", FeatureStore(tmp_path / "a"))
    assert merge_store(tmp_path / "b", FeatureStore(tmp_path / "a")).copied == 20
    assert_has(tmp_path / "a", range(30))


def test_killed_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_file, "ROWS_PER_READ", 4)
    fill(tmp_path / "b", range(12))
    insert, codes = FeatureFile.insert, []
    for at in range(1, 5):
        place = tmp_path / f"a{at}"
        child = os.fork()
        if child == 0:
            calls: list[int] = []

            def dying(self: FeatureFile, rows: dict[bytes, bytes], calls: list[int] = calls, at: int = at) -> bool:
                calls.append(1)
                if len(calls) == at:
                    self._connection.execute("BEGIN IMMEDIATE")
                    self._connection.execute("DELETE FROM features")
                    os.kill(os.getpid(), signal.SIGKILL)
                return insert(self, rows)

            FeatureFile.insert = dying  # type: ignore[method-assign]
            merge_store(tmp_path / "b", FeatureStore(place))
            os._exit(0)
        codes.append(samples.exit_code(child))
        before = len(space(place).find(keys_of(range(12)))[0])
        assert before == min(12, 4 * (at - 1))
        assert merge_store(tmp_path / "b", FeatureStore(place)).copied == 12 - before
        assert_has(place, range(12))
        assert [said for _, said in verify(FeatureStore(place)) if said] == []
    assert codes == [-signal.SIGKILL] * 3 + [0]


def test_a_store_that_others_are_filling(tmp_path: Path) -> None:
    fill(tmp_path / "b", range(6))
    busy = space(tmp_path / "b")
    busy.add(keys_of(range(6, 9)), rows_of(keys_of(range(6, 9))))
    busy.flush()  # in the log, which its process has open
    report = merge_store(tmp_path / "b", FeatureStore(tmp_path / "a"))
    assert (report.copied, report.damaged) == (9, [])
    assert_has(tmp_path / "a", range(9))
