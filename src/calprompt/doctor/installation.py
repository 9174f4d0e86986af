"""The package, what it requires and what is optional, and its cache folder: place, size, and room left on the disk."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path

import calprompt
from calprompt.doctor.examination import Finding, describe, note, ok, problem
from calprompt.files import ENVIRONMENT, cache_root
from calprompt.text import format_size, plural, shorten

MODULES = {
    "open_clip_torch": "open_clip",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}  # imported under another name
EXTRAS = {  # what an extra of the package is for
    "onnx": "writes models that run without torch, for 'calprompt export'",
    "ray": "works on a cluster, for 'calprompt sweep --ray', 'calprompt extract --ray' and 'calprompt serve --ray'",
    "serve": "a web page and an API over a model, for 'calprompt serve'",
    "parquet": "writes tables of results as Parquet, for 'calprompt results'",
    "video": "reads the videos of UCF101, for 'calprompt data prepare ucf101'",
    "test": "runs calprompt's own tests",
    "docs": "builds the documentation",
    "pretrain": "draws the pictures that the pocket was trained on",
}
DEVELOPMENT = ("test", "docs", "pretrain")  # extras for those who change calprompt
FIRST = ("numpy", "torch", "torchvision")  # to import: others fail where these do
TOGETHER = ("torch", "torchvision")  # of which every release of one goes with one of the other


def check_installation() -> Iterator[Finding]:
    """The running versions of calprompt and Python."""
    folder = Path(calprompt.__file__).parent
    try:
        installed = metadata.version("calprompt")
    except metadata.PackageNotFoundError:
        yield note(
            "calprompt",
            f"{calprompt.__version__}, run from {folder} without being installed",
            "What it requires cannot be looked up; install it with 'pip install -e .' in its repository.",
        )
    else:
        if installed == calprompt.__version__:
            yield ok("calprompt", f"{installed}, in {folder}")
        else:
            yield note(
                "calprompt",
                f"{calprompt.__version__}, in {folder}, but version {installed} is what is installed",
                "Two copies are in the way of each other; install the one that you want once more.",
            )
    yield ok("Python", f"{platform.python_version()}, {sys.executable}")
    yield ok("system", platform.platform())


def check_packages() -> Iterator[Finding]:
    """Whether every required package is there, and new enough."""
    for name, least in requirements().items():
        version = version_of(name)
        if version is None:
            yield problem(name, "not installed", f"Install it: pip install '{name}{least and f'>={least}'}'")
        elif _numbers(version) < _numbers(least):
            yield problem(name, f"{version}, and calprompt needs {least} or newer", f"pip install --upgrade {name}")
        else:
            yield ok(name, version)


def check_extras() -> Iterator[Finding]:
    """The installed extras, and their purposes."""
    for extra in metadata.metadata("calprompt").get_all("Provides-Extra") or []:
        purpose = EXTRAS.get(extra, "")
        versions = {name: version_of(name) for name in requirements(extra)}
        missing = [name for name, version in versions.items() if version is None]
        if not missing:
            there = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield ok(extra, f"{there}: {purpose}")
            continue
        value = f"not installed ({', '.join(missing)}): {purpose}"
        if extra in DEVELOPMENT:
            yield ok(extra, f"{value}; nothing else needs it")
        else:
            yield note(extra, value, f"If you want that: pip install 'calprompt[{extra}]'")


def check_imports() -> Iterator[Finding]:
    """Whether the required packages can be imported: files that are there may not fit each other."""
    start = time.monotonic()
    names = [name for name in requirements() if version_of(name)]  # what is missing was found before
    names.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    failed: dict[str, list[str]] = {}
    for name in names:
        try:
            import_module(MODULES.get(name, name))
        except Exception as error:
            failed.setdefault(describe(error), []).append(name)
    for reason, (name, *others) in failed.items():
        advice = f"Install it again: pip install --force-reinstall {name}"
        if name in TOGETHER:
            advice = "torch and torchvision of one release go together: pip install --upgrade torch torchvision"
        value = f"{reason}; {shorten(others)} cannot be imported either" if others else reason
        yield problem(f"importing {MODULES.get(name, name)}", value, advice)
    if not failed:
        yield ok(
            "importing all", f"{plural(len(names), 'package')} in {time.monotonic() - start:.1f} s, once per command"
        )


def requirements(extra: str = "") -> dict[str, str]:
    """Packages that calprompt requires, or that one of its extras does, with the oldest version that will do.

    >>> requirements()["torch"], requirements("video")
    ('2.4', {'av': '12'})
    """
    found = {}
    for line in metadata.requires("calprompt") or []:
        requirement, _, marker = line.partition(";")
        of = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker)
        name = re.match(r"[\w.-]+", requirement)
        if name and (of[1] if of else "") == extra:
            least = re.search(r">=\s*([\w.]+)", requirement)
            found[name[0]] = least[1] if least else ""
    return found


def version_of(name: str) -> str | None:
    """The version of a package that is installed, whether it works or not."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers a version begins with, which are compared.

    >>> _numbers("2.15.0+cu132"), _numbers("0.0.6rc1"), _numbers("")
    ((2, 15, 0), (0, 0, 6), ())
    """
    begin = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, begin[0].split("."))) if begin else ()


LARGE_CLIP_BYTES = 2 * 10**9  # bytes that a large CLIP takes
RUN_BYTES = 10**8  # bytes in which a run and its features may not fit
SECONDS = 5.0  # at most, to add up the sizes of files


def check_storage() -> Iterator[Finding]:
    """Where calprompt keeps what it can make again."""
    root = cache_root()
    why = f"{ENVIRONMENT} is set" if os.environ.get(ENVIRONMENT) else f"{ENVIRONMENT} names another place if set"
    obstacle = unwritable(root)
    if obstacle:
        yield problem(
            "cache folder",
            f"{root}: {obstacle}",
            "Every run computes its image features again, and the pocket's pictures cannot be made; set "
            f"{ENVIRONMENT} to a folder that can be written to.",
        )
    else:
        yield ok("cache folder", f"{root} can be written to ({why})")
    size, whole = size_of(root)
    yield ok(
        "cache size", f"{'' if whole else 'more than '}{format_size(size)}; 'calprompt cache show' lists the features"
    )
    yield disk_space("disk space", root)


def disk_space(name: str, folder: Path) -> Finding:
    """How much room the disk of a folder has, whether the folder exists or not."""
    free = shutil.disk_usage(existing(folder)).free
    value = f"{format_size(free)} free for {folder}"
    if free < RUN_BYTES:
        return problem(name, value, "Too little for a run and its features; make room.")
    if free < LARGE_CLIP_BYTES:
        return note(name, value, "Too little for a large CLIP and its features.")
    return ok(name, value)


def unwritable(folder: Path) -> str:
    """Why a folder, or the first one above it that exists, cannot be written to; empty if it can."""
    place = existing(folder)
    try:
        with tempfile.TemporaryFile(dir=place):
            return ""
    except OSError as error:
        return f"{error.strerror or error}" if place == folder else f"{place}: {error.strerror or error}"


def existing(path: Path) -> Path:
    """A path, or its nearest ancestor that exists."""
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
