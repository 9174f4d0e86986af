"""Tasks that take no time to import, for executors: they note every attempt in a file, and may kill their process."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from calprompt.executors.protocol import Outcome


@dataclass(frozen=True)
class Chore:
    """A task.

    Attributes:
        key: Its name.
        folder: Where it notes its attempts.
        kills: How many processes it kills before it is done.
        seconds: That it takes.
        until: Name of a file in the folder that ends it sooner.
        fails: Whether it raises an error.
    """

    key: str
    folder: str
    kills: int = 0
    seconds: float = 0.0
    until: str = ""
    fails: bool = False

    @property
    def title(self) -> str:
        return f"chore {self.key}"

    def attempts(self) -> int:
        return len(list(Path(self.folder).glob(f"{self.key}-*.begun")))


def do(chore: Chore) -> Outcome[Chore]:
    folder, attempt = Path(chore.folder), chore.attempts()
    (folder / f"{chore.key}-{attempt}.begun").touch()
    if chore.fails:
        raise ZeroDivisionError("nothing to share")
    if attempt < chore.kills:
        time.sleep(0.5)  # so that the driver knows what was done before
        os.kill(os.getpid(), signal.SIGKILL)
    end = time.monotonic() + chore.seconds
    while time.monotonic() < end and not (chore.until and (folder / chore.until).exists()):
        time.sleep(0.05)
    (folder / f"{chore.key}-{attempt}.done").touch()
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
    return Outcome(chore, "finished", result=(os.environ["OMP_NUM_THREADS"], os.getcwd(), os.getppid(), gpu))
