"""A replica on a Ray cluster: the same application as without Ray, in a process of Ray's.

Ray Serve hands it requests, and runs the start and the end of the application. Before it loads the model, a replica
checks that its machine has the versions and the very model of the command that serves it.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError
from calprompt.executors.ray import check_versions, settle
from calprompt.serve.settings import ServeSettings
from calprompt.text import os_problem


@dataclass(frozen=True)
class ReplicaPlan:
    """What a replica has to know.

    Attributes:
        driver: What `describe_driver` returned.
        folder: Of the model.
        digest: What `folder_digest` returned where the command runs.
        options: Further arguments of `load_served`.
        settings: How it is served.
        secret: Of receipts.
    """

    driver: Mapping[str, Any]
    folder: str
    digest: str
    options: Mapping[str, Any]
    settings: ServeSettings
    secret: bytes

    def create_app(self) -> Any:
        """Load the model; returns the application."""
        check_machine(self.driver, self.folder, self.digest)
        from calprompt.serve.app import create_app
        from calprompt.serve.loading import load_served
        from calprompt.serve.ray_marks import SharedMarks

        return create_app(load_served(self.folder, **self.options), self.settings, marks=SharedMarks(self.secret))


class Replica:
    """What Ray Serve makes a replica of, together with the application."""

    async def check_health(self) -> None:
        """Answers as long as the replica's event loop does; Ray replaces a replica that does not."""


def check_machine(driver: Mapping[str, Any], folder: str, digest: str) -> None:
    """Raise unless this machine has the versions and the model of the driver."""
    check_versions(driver["versions"])
    settle(driver)
    where = f"the machine {platform.node()} of the Ray cluster"
    advice = "put it on storage that all machines share, or copy it to the same path on each of them"
    if not Path(folder).is_dir():
        raise CalpromptError(f"{where} does not have the folder {folder}; {advice}")
    try:
        found = folder_digest(Path(folder))
    except OSError as error:
        raise CalpromptError(f"{where} cannot read the model: {os_problem(error)}; {advice}") from error
    if found != digest:
        raise CalpromptError(f"{where} has another model in {folder}; {advice}")


def folder_digest(folder: Path) -> str:
    """A digest of the files of a folder and of their names; hidden ones are left out."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or not path.is_file():
            continue
        with open(path, "rb") as file:
            digest.update(repr((name.as_posix(), hashlib.file_digest(file, "sha256").hexdigest())).encode())
    return digest.hexdigest()
