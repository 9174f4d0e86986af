"""A cache that cannot be used is found before a run fails or is slow because of it."""

import errno
import shutil
import tempfile
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from calprompt.doctor import installation
from calprompt.doctor.examination import Finding
from calprompt.doctor.installation import check_storage, size_of

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALPROMPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, 10**12))
    return tmp_path / "cache"


def found() -> dict[str, Finding]:
    return {finding.name: finding for finding in check_storage()}


def test_storage_check_does_not_create_the_cache(folder: Path) -> None:
    assert {finding.status for finding in found().values()} == {"ok"}
    assert found()["cache folder"].value == f"{folder} can be written to (CALPROMPT_CACHE is set)"
    assert not folder.exists()


def test_storage_check_leaves_no_file(folder: Path) -> None:
    (folder / "features").mkdir(parents=True)
    (folder / "features" / "a").write_bytes(bytes(1500))
    assert found()["cache size"].value.startswith("1.5 KB;")
    assert [path.name for path in folder.rglob("*")] == ["features", "a"]


def test_a_cache_that_cannot_be_written_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dir: Path) -> Any:
        raise OSError(errno.EROFS, "Read-only file system", str(dir))

    folder.write_text("a file")
    finding = found()["cache folder"]
    assert (finding.status, finding.value) == ("problem", f"{folder}: Not a directory")
    assert "set CALPROMPT_CACHE to a folder that can be written to" in finding.advice
    folder.unlink()
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert found()["cache folder"].value == f"{folder}: {folder.parent}: Read-only file system"
    folder.mkdir()
    assert found()["cache folder"].value == f"{folder}: Read-only file system"


@pytest.mark.parametrize(("free", "status"), [(10**7, "problem"), (10**9, "note"), (10**11, "ok")])
def test_disks_that_are_full(folder: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, free))
    assert found()["disk space"].status == status


def test_a_large_cache_does_not_take_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "a").write_bytes(bytes(10))
    assert size_of(folder) == (30, True)
    monkeypatch.setattr(installation, "SECONDS", -1.0)
    assert size_of(folder)[1] is False
    assert found()["cache size"].value.startswith("more than ")
