"""The package itself, what it requires and what is optional: by the metadata of what is installed, and by importing."""

from __future__ import annotations

import platform
import re
import sys
import time
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path

import calprompt
from calprompt.doctor.examination import describe
from calprompt.doctor.finding import NOTE, OK, PROBLEM, Finding
from calprompt.text import plural, shorten

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
    """Which calprompt and which Python run."""
    folder = Path(calprompt.__file__).parent
    try:
        installed = metadata.version("calprompt")
    except metadata.PackageNotFoundError:
        yield Finding(
            "calprompt",
            NOTE,
            f"{calprompt.__version__}, run from {folder} without being installed",
            "What it requires cannot be looked up; install it with 'pip install -e .' in its repository.",
        )
    else:
        if installed == calprompt.__version__:
            yield Finding("calprompt", OK, f"{installed}, in {folder}")
        else:
            yield Finding(
                "calprompt",
                NOTE,
                f"{calprompt.__version__}, in {folder}, but version {installed} is what is installed",
                "Two copies are in the way of each other; install the one that you want once more.",
            )
    yield Finding("Python", OK, f"{platform.python_version()}, {sys.executable}")
    yield Finding("system", OK, platform.platform())


def check_packages() -> Iterator[Finding]:
    """Whether every required package is there, and new enough."""
    for name, least in requirements().items():
        version = version_of(name)
        if version is None:
            yield Finding(name, PROBLEM, "not installed", f"Install it: pip install '{name}{least and f'>={least}'}'")
        elif _numbers(version) < _numbers(least):
            yield Finding(
                name, PROBLEM, f"{version}, and calprompt needs {least} or newer", f"pip install --upgrade {name}"
            )
        else:
            yield Finding(name, OK, version)


def check_extras() -> Iterator[Finding]:
    """Which extras are installed, and what they are for."""
    for extra in metadata.metadata("calprompt").get_all("Provides-Extra") or []:
        purpose = EXTRAS.get(extra, "")
        versions = {name: version_of(name) for name in requirements(extra)}
        missing = [name for name, version in versions.items() if version is None]
        if not missing:
            there = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield Finding(extra, OK, f"{there}: {purpose}")
            continue
        value = f"not installed ({', '.join(missing)}): {purpose}"
        if extra in DEVELOPMENT:
            yield Finding(extra, OK, f"{value}; nothing else needs it")
        else:
            yield Finding(extra, NOTE, value, f"If you want that: pip install 'calprompt[{extra}]'")


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
        yield Finding(f"importing {MODULES.get(name, name)}", PROBLEM, value, advice)
    if not failed:
        yield Finding(
            "importing all",
            OK,
            f"{plural(len(names), 'package')} in {time.monotonic() - start:.1f} s, once per command",
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
