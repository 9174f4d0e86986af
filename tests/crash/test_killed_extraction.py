"""Processes that fill one feature store and are killed: it stays valid, and what was finished is never computed again.

Processes are real and so is SIGKILL: forked ones that die at a chosen write, and two at work on the same images.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import samples
from calprompt.data.checks import UnreadableImages
from calprompt.data.images import ImageFiles
from calprompt.features import frozen
from calprompt.features import store as store_file
from calprompt.features.frozen import frozen_features
from calprompt.features.housekeeping import spaces, verify
from calprompt.features.store import FeatureFile, FeatureStore, Space

backbone = samples.loaded

VIEWS, ROWS = 4, 112  # of 28 images: 7 batches of 16


@cache
def files() -> ImageFiles:
    return samples.picture_files().take(range(ROWS // VIEWS))


def features(store: Path | None) -> torch.Tensor:
    kept = None if store is None else FeatureStore(store)
    return frozen_features(backbone(), files(), VIEWS, unreadable=UnreadableImages(), store=kept)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 16, looked up and written one by one."""
    monkeypatch.setattr(frozen, "LARGE_TOWER", 0)
    monkeypatch.setattr(frozen, "VIEWS_PER_LOOKUP", 16)
    monkeypatch.setattr(store_file, "FLUSH_SECONDS", 0.0)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    encode = frozen.encode
    monkeypatch.setattr(frozen, "encode", lambda using, pixels: (calls.append(len(pixels)), encode(using, pixels))[1])
    return calls


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """MKL keeps a list of what its threads hold, in which a copy of a process that had some may search for ever."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def finished(store: Path) -> int:
    found = spaces(FeatureStore(store))
    return found[0].features if found else 0


@pytest.mark.parametrize("committed", [True, False])
def test_killed_at_any_write(tmp_path: Path, computed: list[int], committed: bool) -> None:
    expected, insert = features(None), FeatureFile.insert
    for at in range(1, 8):  # every batch
        store = tmp_path / str(at)

        def work(store: Path = store, at: int = at) -> None:
            calls: list[int] = []

            def dying(self: FeatureFile, rows: dict[bytes, bytes]) -> bool:
                calls.append(1)
                if len(calls) == at and not committed:
                    self._connection.execute("BEGIN IMMEDIATE")
                    self._connection.execute("DELETE FROM features")
                    os.kill(os.getpid(), signal.SIGKILL)
                done = insert(self, rows)
                if len(calls) == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return done

            FeatureFile.insert = dying  # type: ignore[method-assign]
            features(store)

        assert samples.exit_code(samples.forked(work)) == -signal.SIGKILL
        assert [said for _, said in verify(FeatureStore(store)) if said] == []
        before = finished(store)
        assert before == 16 * (at - 1 + committed)
        computed.clear()
        assert torch.equal(features(store), expected)
        assert sum(computed) == ROWS - before
        assert finished(store) == ROWS


def logging(log: Path, lives: int | None) -> None:
    """Note when a process begins with views that the store had not, and when their features are finished there."""
    find, write = Space.find, FeatureFile.insert
    file = log.open("a", buffering=1)
    left = lives

    def note(what: str, when: int, keys: list[bytes]) -> None:
        file.write(json.dumps({"what": what, "time": when, "keys": [key.hex() for key in keys]}) + "\n")

    def found(self: Space, keys: list[bytes]) -> Any:
        begin = time.monotonic_ns()
        here, rows = find(self, keys)
        note("begin", begin, [key for place, key in enumerate(keys) if place not in here])
        return here, rows

    def written(self: FeatureFile, rows: dict[bytes, bytes]) -> bool:
        nonlocal left
        time.sleep(0.005)
        done = write(self, rows)
        note("end", time.monotonic_ns(), list(rows))
        if left is not None:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return done

    Space.find, FeatureFile.insert = found, written  # type: ignore[method-assign]


def test_two_processes_at_once_and_one_is_killed(tmp_path: Path) -> None:
    expected, store = features(None), tmp_path / "store"

    def work(number: int, lives: int | None) -> None:
        logging(tmp_path / f"{number}.jsonl", lives)
        assert torch.equal(features(store), expected)

    one = samples.forked(lambda: work(0, 3))
    end = time.monotonic() + 60
    while not finished(store) and time.monotonic() < end:
        time.sleep(0.001)
    other = samples.forked(lambda: work(1, None))
    assert [samples.exit_code(one), samples.exit_code(other)] == [-signal.SIGKILL, 0]
    assert [said for _, said in verify(FeatureStore(store)) if said] == []
    assert finished(store) == ROWS
    logs = [[json.loads(line) for line in (tmp_path / f"{n}.jsonl").read_text().splitlines()] for n in (0, 1)]
    ended: dict[str, int] = {}
    for event in sorted(logs[0] + logs[1], key=lambda event: event["time"]):
        if event["what"] == "end":
            for key in event["keys"]:
                ended.setdefault(key, event["time"])
        else:
            assert not set(event["keys"]) & ended.keys()
    work_of_the_other = sum(len(event["keys"]) for event in logs[1] if event["what"] == "begin")
    assert work_of_the_other <= ROWS - 16  # the rest was done when it came


def test_interrupted_by_the_user(tmp_path: Path, computed: list[int]) -> None:
    expected = features(None)
    store = FeatureStore(tmp_path)

    def stop(what: str, done: int, total: int, note: str = "") -> None:
        if done >= 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        frozen_features(backbone(), files(), VIEWS, unreadable=UnreadableImages(), store=store, progress=stop)
    before = finished(tmp_path)
    assert before >= 50
    computed.clear()
    assert torch.equal(features(tmp_path), expected)
    assert sum(computed) == ROWS - before
