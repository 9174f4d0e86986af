"""Files that are there in full or not at all, and a folder's lock."""

import json
import os
import threading
from pathlib import Path

import pytest

from calprompt.errors import CalpromptError
from calprompt.files import LOCK, clear_leftovers, is_locked, locked, read_json, write_bytes, write_json


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"good": 1})

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"good": 2})
    assert read_json(path) == {"good": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    path, stop = tmp_path / "a.json", threading.Event()
    write_json(path, ["a"] * 20_000)

    def keep_writing() -> None:
        for letter in "bcdefghijk" * 3:
            write_json(path, [letter] * 20_000)
        stop.set()

    writer = threading.Thread(target=keep_writing)
    writer.start()
    while not stop.is_set():
        assert len(set(json.loads(path.read_text()))) == 1
    writer.join()


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path, failed = tmp_path / "a.json", []

    def keep_writing(letter: str) -> None:
        try:
            for _ in range(30):
                write_json(path, [letter] * 20_000)
        except OSError as error:
            failed.append(error)

    writers = [threading.Thread(target=keep_writing, args=letter) for letter in "ab"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert not path.exists() or len(set(json.loads(path.read_text()))) == 1
    assert not failed
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".run.json.tmp", ".hidden", "a.tmp"):
        (tmp_path / name).write_text("")
    clear_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "a.tmp"]


def test_json_has_no_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"ece": float("nan")})
    write_bytes(tmp_path / "b.json", b"{")
    with pytest.raises(CalpromptError, match="is not JSON"):
        read_json(tmp_path / "b.json")
    with pytest.raises(CalpromptError, match="cannot read"):
        read_json(tmp_path / "c.json")


def test_a_lock_is_held_by_one_and_named(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(CalpromptError, match=f"process {os.getpid()} is working in"), locked(tmp_path):
            pass
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
    assert not (tmp_path / LOCK).exists()


def test_a_lock_file_without_its_process_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("1")
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        pass


def test_many_processes_take_turns(tmp_path: Path) -> None:
    """Each counts up while it holds the lock, and tries again while another does: no count is lost."""
    counter = tmp_path / "count"
    counter.write_text("0")
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            done = 0
            while done < 20:
                try:
                    with locked(tmp_path):
                        counter.write_text(str(int(counter.read_text()) + 1))
                        done += 1
                except CalpromptError:
                    pass
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert counter.read_text() == "80"
