"""The cache folder: where it is, whether it can be written to, how large it is, and how much room is left."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from calprompt.cache import ENVIRONMENT, cache_root
from calprompt.doctor.finding import NOTE, OK, PROBLEM, Finding
from calprompt.text import format_size

LITTLE = 2 * 10**9  # bytes that a large CLIP takes
NOTHING = 10**8  # bytes in which a run and its features may not fit
SECONDS = 5.0  # at most, to add up the sizes of files


def check_storage() -> Iterator[Finding]:
    """Where calprompt keeps what it can make again."""
    root = cache_root()
    why = f"{ENVIRONMENT} is set" if os.environ.get(ENVIRONMENT) else f"{ENVIRONMENT} names another place if set"
    obstacle = unwritable(root)
    if obstacle:
        yield Finding(
            "cache folder",
            PROBLEM,
            f"{root}: {obstacle}",
            "Every run computes its image features again, and the pocket's pictures cannot be made; set "
            f"{ENVIRONMENT} to a folder that can be written to.",
        )
    else:
        yield Finding("cache folder", OK, f"{root} can be written to ({why})")
    size, whole = size_of(root)
    yield Finding(
        "cache size",
        OK,
        f"{'' if whole else 'more than '}{format_size(size)}; 'calprompt cache show' lists the features",
    )
    yield disk_space("disk space", root)


def disk_space(name: str, folder: Path) -> Finding:
    """How much room the disk of a folder has, whether the folder exists or not."""
    free = shutil.disk_usage(existing(folder)).free
    value = f"{format_size(free)} free for {folder}"
    if free < NOTHING:
        return Finding(name, PROBLEM, value, "Too little for a run and its features; make room.")
    if free < LITTLE:
        return Finding(name, NOTE, value, "Too little for a large CLIP and its features.")
    return Finding(name, OK, value)


def unwritable(folder: Path) -> str:
    """Why a folder, or the first one above it that exists, cannot be written to; empty if it can."""
    place = existing(folder)
    try:
        with tempfile.TemporaryFile(dir=place):
            return ""
    except OSError as error:
        return f"{error.strerror or error}" if place == folder else f"{place}: {error.strerror or error}"


def existing(path: Path) -> Path:
    """A path, or the first one above it that exists."""
    return next((each for each in (path, *path.absolute().parents) if each.exists()), Path())


def size_of(folder: Path) -> tuple[int, bool]:
    """Bytes of all files in a folder, and whether all were counted in the time there is."""
    total, end = 0, time.monotonic() + SECONDS
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:  # removed meanwhile
                continue
        if time.monotonic() > end:
            return total, False
    return total, True
