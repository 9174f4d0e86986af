"""Feedback that was confirmed is there afterwards, whatever happens to the process or the disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from calprompt.data.decoding import FORMATS, SUFFIXES
from calprompt.errors import DamagedFileError, SettingError
from calprompt.serve.feedback import FeedbackBook, Receipt
from calprompt.serve.feedback_store import FeedbackRecord, FeedbackStore, KeptImages
from serve import serving

WRITER = """
import resource, sys
from pathlib import Path
from calprompt.serve.feedback_store import FeedbackRecord, FeedbackStore
from calprompt.serve.problems import ProblemError

store, limit = FeedbackStore(Path(sys.argv[1]), "m", 0.1), int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
refused = 0
for number in range(100_000):
    try:
        store.add(FeedbackRecord(f"{sys.argv[3]}-{number}", "p" * 64, "answer", "ant", True, None, False, 0.0))
        print(f"{sys.argv[3]}-{number}", flush=True)
    except ProblemError:
        refused += 1
        if refused == 3:  # room is made
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if refused > 3:
            raise
    if refused and number > 400:
        break
"""


def record(nonce: str, image: str = "p") -> FeedbackRecord:
    return FeedbackRecord(nonce, image, "answer", "ant", True, "ant", True, 1.5)


def test_feedback_and_the_secret_outlast_the_process(tmp_path: Path) -> None:
    path = tmp_path / "feedback.db"
    store = FeedbackStore(path, "m", 0.1)
    store.add(record("a"))
    store.close()
    assert path.stat().st_mode & 0o077 == 0
    again = FeedbackStore(path, "m", 0.1)
    assert (again.secret, [each for _, each in again.records()]) == (store.secret, [record("a")])
    again.close()
    with pytest.raises(SettingError, match="feedback on another model"):
        FeedbackStore(path, "m", 0.2)


def test_one_server_owns_the_file(tmp_path: Path) -> None:
    first = FeedbackStore(tmp_path / "feedback.db", "m", 0.1)
    with pytest.raises(SettingError, match="is used by another server"):
        FeedbackStore(tmp_path / "feedback.db", "m", 0.1)
    first.close()
    FeedbackStore(tmp_path / "feedback.db", "m", 0.1).close()


def test_a_file_that_is_not_feedback_is_refused(tmp_path: Path) -> None:
    for name, content in {"text": b"some text that is no database at all" * 100, "json": b'{"format": 1}\n'}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DamagedFileError, match="is not a feedback file"):
            FeedbackStore(tmp_path / name, "m", 0.1)
        assert (tmp_path / name).read_bytes() == content


def test_killed_servers_lose_no_confirmed_feedback(tmp_path: Path) -> None:
    path = tmp_path / "feedback.db"
    confirmed: list[str] = []
    for turn in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, path, "0", str(turn)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            confirmed += [process.stdout.readline().strip() for _ in range(20 + 7 * turn)]
            os.kill(process.pid, signal.SIGKILL)
            confirmed += [line.strip() for line in process.stdout if line.endswith("\n")]
    store = FeedbackStore(path, "m", 0.1)
    kept = [each.nonce for _, each in store.records()]
    assert set(confirmed) <= set(kept)
    assert len(kept) - len(confirmed) <= 3  # written, and killed before it could be said
    store.close()


@pytest.mark.parametrize("limit", [40_000, 65_537, 300_000])
def test_a_full_disk_loses_no_confirmed_feedback(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "feedback.db"
    done = subprocess.run(
        [sys.executable, "-c", WRITER, path, str(limit), "x"], capture_output=True, text=True, check=True
    )
    confirmed = done.stdout.split()
    assert 0 < len(confirmed) < 100_000
    store = FeedbackStore(path, "m", 0.1)
    assert [each.nonce for _, each in store.records()] == confirmed
    store.close()


def test_a_corrected_image_is_kept_in_one_folder(tmp_path: Path) -> None:
    book = FeedbackBook(serving.numpy_model(), keep=KeptImages(tmp_path))
    for name in ("bee", "cat"):
        assert book.add(Receipt.of("m", b"pixels", "answer", "ant", True), False, class_name=name, image=b"x")["kept"]
    assert [path.parent.name for path in tmp_path.glob("*/*")] == ["cat"]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_kept_image_is_found_by_the_next_fit(tmp_path: Path, kind: str) -> None:
    book = FeedbackBook(serving.numpy_model(), keep=KeptImages(tmp_path))
    book.add(Receipt.of("m", b"pixels", "answer", "ant", True), True, image=b"x", format=kind)
    assert [path.name.endswith(SUFFIXES) for path in tmp_path.glob("ant/*")] == [True]


def test_an_undone_image_stays_while_another_version_has_it_and_leaves_no_empty_class(tmp_path: Path) -> None:
    keep = KeptImages(tmp_path)
    books = [FeedbackBook(serving.numpy_model(seed=seed), keep=keep) for seed in (1, 2)]
    receipts = [Receipt.of(each.fingerprint, b"pixels", "answer", "ant", True) for each in books]
    for book, receipt in zip(books, receipts, strict=True):
        assert book.add(receipt, False, class_name="bee", image=b"x")["kept"]
    books[0].undo(receipts[0])
    assert len(list(tmp_path.glob("bee/*"))) == 1
    books[1].undo(receipts[1])
    assert list(tmp_path.iterdir()) == []
