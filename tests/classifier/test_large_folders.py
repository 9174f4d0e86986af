"""`predict` on archives, videos, folders that fill, and files of answers that are continued."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import av
import numpy as np
import pytest

from calprompt.cli import main
from calprompt.data import streams
from calprompt.data.streams import arrivals, streamed_images
from calprompt.errors import ImageError
from classifier.fits import picture_paths, saved


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    def command(*words: object) -> tuple[int, str, str]:
        status = main([str(word) for word in words])
        printed = capsys.readouterr()
        return status, printed.out, " ".join(printed.err.split())

    return command


def names(path: Path) -> list[str]:
    with path.open(newline="") as file:
        return [row["name"] for row in csv.DictReader(file)]


def test_an_interrupted_file_of_answers_is_continued(tmp_path: Path, run) -> None:
    paths, answers = picture_paths()[:9], tmp_path / "answers.csv"
    assert run("predict", saved(), *paths, "--resume", answers)[0] == 0
    whole = answers.read_bytes()
    assert names(answers) == paths
    begun = whole.index(b"\n", len(whole) // 3) + 1
    for cut in (0, 20, len(whole) // 3, len(whole) // 2, len(whole) - 1, len(whole)):  # as a kill may leave it
        answers.write_bytes(whole[:cut])
        status, out, _ = run("predict", saved(), *paths, "--resume", answers)
        assert status == 0
        assert names(answers) == paths
        assert cut < begun or answers.read_bytes()[:begun] == whole[:begun]  # what was whole stays
        assert "new answer" in out


def test_names_with_line_breaks_and_quotes_are_continued(tmp_path: Path, run) -> None:
    odd = tmp_path / 'a "b"\nc.png'
    shutil.copy(picture_paths()[0], odd)
    answers = tmp_path / "answers.csv"
    run("predict", saved(), odd, picture_paths()[1], "--resume", answers)
    whole = answers.read_bytes()
    for cut in range(whole.index(b'a ""b""') - 3, len(whole), 25):
        answers.write_bytes(whole[:cut])
        run("predict", saved(), odd, picture_paths()[1], "--resume", answers)
        assert names(answers) == [str(odd), picture_paths()[1]]


def test_answers_as_json_lines_and_what_is_no_file_of_answers(tmp_path: Path, run) -> None:
    answers = tmp_path / "answers.jsonl"
    run("predict", saved(), picture_paths()[0], "--resume", answers)
    run("predict", saved(), *picture_paths()[:2], "--resume", answers)
    assert [json.loads(line)["name"] for line in answers.read_text().splitlines()] == picture_paths()[:2]
    other = tmp_path / "other.csv"
    other.write_text("image,class\na.png,cat\n")
    status, _, err = run("predict", saved(), picture_paths()[0], "--resume", other)
    assert (status, "its columns are image, class" in err) == (2, True)
    assert other.read_text() == "image,class\na.png,cat\n"
    assert "must end in" in run("predict", saved(), picture_paths()[0], "--resume", tmp_path / "a.txt")[2]
    assert "its own file" in run("predict", saved(), picture_paths()[0], "--resume", answers, "--csv")[2]


def test_images_in_archives_get_the_answers_of_the_files(tmp_path: Path, run) -> None:
    paths = picture_paths()[:5]
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        for path in paths:
            archive.write(path, f"in/{Path(path).name}")
        archive.writestr("notes.txt", "no image")
    with tarfile.open(tmp_path / "some.tar.gz", "w:gz") as tar:
        for path in paths:
            tar.add(path, f"in/{Path(path).name}")

    def answers(*places: object) -> list[tuple[str, str, str]]:
        rows = csv.DictReader(io.StringIO(run("predict", saved(), *places, "--csv", "--quiet")[1]))
        return [(Path(row["name"]).name, row["class_name"], row["probability"]) for row in rows]

    assert answers(*paths) == answers(tmp_path / "some.zip") == answers(tmp_path / "some.tar.gz")
    status, _, err = run("predict", saved(), tmp_path / "some.zip", "--move-into", tmp_path / "sorted")
    assert (status, "cannot be moved" in err) == (2, True)


def test_progress_of_a_zip_file_counts_its_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run) -> None:
    monkeypatch.setattr("calprompt.progress.LINE_SECONDS", 0)
    paths = picture_paths()[:5]
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        for path in paths[:4]:
            archive.write(path, f"in/{Path(path).name}")
        archive.writestr("notes.txt", "no image")
    assert "predicting: 5 of 5 (100 %)" in run("predict", saved(), tmp_path / "some.zip", paths[4], "--csv")[2]
    answers = tmp_path / "answers.csv"
    run("predict", saved(), paths[4], "--resume", answers)
    status, _, err = run("predict", saved(), tmp_path / "some.zip", paths[4], "--resume", answers)
    assert (status, "predicting: 4 of 4 (100 %)" in err) == (0, True)
    assert len(names(answers)) == 5


def test_archives_cannot_lead_out_or_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LARGEST_MEMBER", 10_000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../escape.png", b"x")
        archive.writestr("huge.png", bytes(1_000_000))
    escape, huge = streamed_images(tmp_path / "bomb.zip")
    assert escape.name == f"{tmp_path}/bomb.zip/escape.png"
    assert isinstance(huge, ImageError)
    lying = bytearray((tmp_path / "bomb.zip").read_bytes())
    place = lying.rindex(b"PK\x01\x02")  # the entry of huge.png says that it has 100 bytes
    lying[place + 24 : place + 28] = (100).to_bytes(4, "little")
    (tmp_path / "lying.zip").write_bytes(lying)
    assert all(
        isinstance(each, ImageError) or len(getattr(each, "data", b"")) <= 10_000
        for each in streamed_images(tmp_path / "lying.zip")
    )
    with tarfile.open(tmp_path / "odd.tar", "w") as tar:
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        big = tarfile.TarInfo("/abs/big.png")
        big.size = 20_000
        tar.addfile(big, io.BytesIO(bytes(20_000)))
    (only,) = streamed_images(tmp_path / "odd.tar")
    assert isinstance(only, ImageError)
    assert str(only) == f"{tmp_path}/odd.tar/abs/big.png (more than 0 MB; unpack the archive)"
    with tarfile.open(tmp_path / "whole.tgz", "w:gz") as tar:
        tar.add(picture_paths()[0], "a.png")
    (tmp_path / "half.tgz").write_bytes((tmp_path / "whole.tgz").read_bytes()[:300])
    assert "damaged after" in [*streamed_images(tmp_path / "half.tgz")][-1].reason  # type: ignore[union-attr]
    (tmp_path / "no.zip").write_bytes(b"nothing")
    assert "damaged after 0" in next(streamed_images(tmp_path / "no.zip")).reason  # type: ignore[union-attr]


def test_frames_of_a_video(tmp_path: Path, run) -> None:
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        for number in range(35):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 7 * number, dtype=np.uint8), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    rows = [*csv.DictReader(io.StringIO(run("predict", saved(), path, "--csv", "--quiet")[1]))]
    assert [row["name"].rsplit("@")[1] for row in rows] == ["0.00s", "1.00s", "2.00s", "3.00s"]
    rows = [*csv.DictReader(io.StringIO(run("predict", saved(), path, "--csv", "--quiet", "--seconds", 2)[1]))]
    assert len(rows) == 2


def test_files_are_taken_when_they_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "POLL_SECONDS", 0.05)
    stop, failed, growing = threading.Event(), dict[str, str](), tmp_path / "growing.png"
    (tmp_path / "sorted").mkdir()
    (tmp_path / "sorted" / "moved.png").write_bytes(b"x")
    (tmp_path / "there.png").write_bytes(b"x")
    (tmp_path / "known.png").write_bytes(b"x")
    growing.write_bytes(b"")
    found = arrivals(
        [str(tmp_path)], stop, done={str(tmp_path / "known.png")}, failed=failed, leave_out=str(tmp_path / "sorted")
    )
    assert next(found) == [str(tmp_path / "there.png")]
    growing.write_bytes(b"half")
    assert next(found) == [str(growing)]
    failed[str(growing)] = "damaged"
    growing.write_bytes(b"now it is whole")
    assert next(found) == [str(growing)]
    stop.set()
    assert list(found) == []


def test_follow_answers_what_arrives_and_ends_cleanly(tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "POLL_SECONDS", 0.05)
    inbox, answers = tmp_path / "inbox", tmp_path / "answers.csv"
    inbox.mkdir()
    shutil.copy(picture_paths()[0], inbox / "0.png")

    def arrive() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (answers.exists() and len(names(answers)) >= 1):
            time.sleep(0.02)
        shutil.copy(picture_paths()[1], inbox / "1.png")
        while time.monotonic() < deadline and len(names(answers)) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=arrive)
    thread.start()
    status, out, _ = run("predict", saved(), inbox, "--follow", "--resume", answers, "--quiet")
    thread.join()
    assert status == 0
    assert names(answers) == [str(inbox / "0.png"), str(inbox / "1.png")]
    assert "2 new answers" in out
    status, _, err = run("predict", saved(), picture_paths()[0], "--follow")
    assert (status, "takes folders" in err) == (2, True)
