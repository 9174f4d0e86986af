"""Files that are there in full or not at all, and a folder's lock."""

import json
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from calprompt.errors import CalpromptError, SettingError
from calprompt.files import LOCK, check_output, clear_leftovers, is_locked, locked, read_json, write_bytes, write_json


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


def test_only_leftovers_are_removed(tmp_path: Path) -> None:
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


def test_a_stale_lock_file_is_ignored(tmp_path: Path) -> None:
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


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    target, link, chain = tmp_path / "store" / "a.csv", tmp_path / "link.csv", tmp_path / "chain.csv"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to("store/a.csv")
    chain.symlink_to("link.csv")
    write_bytes(chain, b"new")
    assert (chain.is_symlink(), link.is_symlink(), target.is_symlink()) == (True, True, False)
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o600, "who may read it stays"
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["a.csv"]
    dangling = tmp_path / "dangling.csv"
    dangling.symlink_to("store/later.csv")
    write_bytes(dangling, b"first")
    assert dangling.is_symlink()
    assert (tmp_path / "store" / "later.csv").read_bytes() == b"first"


def test_a_link_to_itself_is_refused_and_stays(tmp_path: Path) -> None:
    loop = tmp_path / "loop.csv"
    loop.symlink_to("loop.csv")
    with pytest.raises(OSError, match="symbolic links"):
        write_bytes(loop, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["loop.csv"]
    assert loop.is_symlink()


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe, link, got = tmp_path / "pipe.csv", tmp_path / "link.csv", []
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_bytes(link, b"a,b\n" * 50_000)
    reader.join(timeout=10)
    assert got == [b"a,b\n" * 50_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "pipe.csv"]


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    """A disk that is full: the device of that name, made here; where no device can be made, a pipe nobody reads."""
    device = tmp_path / "full.csv"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        device.open("wb").close()
    except OSError:
        device.unlink(missing_ok=True)
        os.mkfifo(device)
        end = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
        threading.Timer(0.2, os.close, (end,)).start()
    kind = stat.S_IFMT(device.stat().st_mode)
    with pytest.raises(OSError, match=r"No space left|Broken pipe") as caught:
        write_bytes(device, b"x" * 1_000_000)
    assert caught.value.filename == str(device)
    assert stat.S_IFMT(device.stat().st_mode) == kind, "it was not replaced by a file"
    assert [path.name for path in tmp_path.iterdir()] == ["full.csv"]


def test_standard_output_is_written_in_its_turn(tmp_path: Path) -> None:
    """Also where the shell has sent it into a file, which is not replaced under the shell's hands."""
    script = "from pathlib import Path; from calprompt.files import write_bytes; print('first'); "
    script += "write_bytes(Path('/dev/stdout'), b'second\\n'); print('third')"
    with (tmp_path / "out.txt").open("wb") as file:
        subprocess.run([sys.executable, "-c", script], stdout=file, check=True)
    assert (tmp_path / "out.txt").read_text() == "first\nsecond\nthird\n"
    piped = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert piped == b"first\nsecond\nthird\n"


@pytest.mark.parametrize(
    ("path", "says"),
    [("", "got ''"), ("folder", "is a folder"), ("file/inside.csv", "file"), ("x.txt", "must end in .csv")],
)
def test_unwritable_outputs_are_reported_first(path: str, says: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    with pytest.raises(SettingError, match=re.escape(says)) as caught:
        check_output(path, (".csv",) if path.startswith("x") else (), parameter="csv")
    assert caught.value.parameter == "csv"
    assert caught.value.spelled({"csv": "--csv"}).startswith("--csv must ")
