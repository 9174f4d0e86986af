"""How often a space of the feature store was used: a line appended by every use, summed up when there are many."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from calprompt.errors import CalpromptError
from calprompt.files import locked, write_bytes

USAGE = "usage.jsonl"
LARGE = 1 << 16  # bytes of a list that is summed up


@dataclass(frozen=True)
class Usage:
    """How a space was used.

    Attributes:
        time: Of the last use, in seconds since 1970.
        found: Features that were in the store.
        computed: Features that were computed.
        seconds: How long computing them took.
    """

    time: float = 0.0
    found: int = 0
    computed: int = 0
    seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            max(self.time, other.time),
            self.found + other.found,
            self.computed + other.computed,
            round(self.seconds + other.seconds, 3),
        )

    @property
    def saved(self) -> float:
        """Seconds that computing the found features would have taken, at the speed of the computed ones."""
        return self.seconds / self.computed * self.found if self.computed else 0.0


def note_use(folder: Path, found: int, computed: int, seconds: float) -> None:
    """Append a line, which is atomic for a short one; errors are ignored, because these are only statistics."""
    usage = Usage(round(time.time(), 3), found, computed, round(seconds, 3))
    with suppress(OSError):
        file = os.open(folder / USAGE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, f"{json.dumps(asdict(usage))}\n".encode())
            large = os.fstat(file).st_size > LARGE
        finally:
            os.close(file)
        if large:
            with suppress(CalpromptError), locked(folder):
                write_bytes(folder / USAGE, f"{json.dumps(asdict(read_usage(folder)))}\n".encode())


def read_usage(folder: Path) -> Usage:
    """The sum of all lines; incomplete ones are ignored."""
    total = Usage()
    with suppress(OSError):
        for line in (folder / USAGE).read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, TypeError):
                total += Usage(**json.loads(line))
    return total
