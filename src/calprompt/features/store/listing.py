"""Which files a folder has, read again when the folder has changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

FINE, COARSE = 10**8, 21 * 10**8  # nanoseconds within which a second change may leave a folder's time as it is
LONGEST = 10.0  # seconds after which the folder is read in any case: not every file system keeps its time


class Listing:
    """The names in a folder; names that begin with a dot are of files that are not complete."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: frozenset[str] = frozenset()
        self._time: int | None = None  # of the folder's last change; None: read it again
        self._until = 0.0

    def refresh(self) -> bool:
        """Read the folder if it may have changed; returns whether it was read."""
        now, changed = time.time_ns(), self._changed()
        if changed is not None and changed == self._time and time.monotonic() < self._until:
            return False
        while True:
            self.names = self._read()
            if self.names == self._read():  # a merge while reading: the list may lack both the old and the new file
                break
        age = COARSE if changed is not None and changed % 10**9 == 0 else FINE
        self._time = changed if changed is not None and now - changed > age else None
        self._until = time.monotonic() + LONGEST
        return True

    def forget(self) -> None:
        """Read the folder the next time."""
        self._time = None

    def _changed(self) -> int | None:
        try:
            return os.stat(self.folder).st_mtime_ns
        except OSError:
            return None

    def _read(self) -> frozenset[str]:
        try:
            return frozenset(name for name in os.listdir(self.folder) if not name.startswith("."))
        except OSError:
            return frozenset()
