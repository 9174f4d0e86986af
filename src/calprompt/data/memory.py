"""Bytes of image files that were read lately, so that a run opens each file once.

A run looks at its images several times: to digest them, to compute features, to train on pixels. What was read is kept
up to a budget and given again while the file stays as it is on disk; a larger dataset is read again instead.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable

from calprompt.data.decoding import read

BUDGET = 512 << 20  # bytes

Signature = tuple[int, int, int, int]


class ImageMemory:
    """A bounded store of file contents; several threads may use it.

    Args:
        budget: Bytes that it keeps at most; the files used longest ago go first.
    """

    def __init__(self, budget: int = BUDGET) -> None:
        self.budget = budget
        self.size = 0
        self._kept: OrderedDict[str, tuple[Signature, bytes]] = OrderedDict()
        self._digests: dict[tuple[str, bool], tuple[Signature, str]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def read(self, path: str) -> bytes:
        """What is in a file, from memory if it has not changed since it was read.

        Raises:
            ImageError: if it cannot be read.
        """
        signature = _signature(path)
        with self._lock:
            kept = self._kept.get(path)
            if kept is not None and kept[0] == signature:
                self._kept.move_to_end(path)
                return kept[1]
        data = read(path)
        if signature is not None and signature == _signature(path):  # else it changed while it was read
            self._keep(path, signature, data)
        return data

    def digest(self, path: str, upright: bool, compute: Callable[[], str]) -> str:
        """The digest of a file, computed if it is not known or the file has changed."""
        signature = _signature(path)
        known = self._digests.get((path, upright))
        if known is not None and known[0] == signature:
            return known[1]
        digest = compute()
        if signature is not None and signature == _signature(path):
            self._digests[path, upright] = (signature, digest)
        return digest

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()
            self._digests.clear()
            self.size = 0

    def _keep(self, path: str, signature: Signature, data: bytes) -> None:
        with self._lock:
            replaced = self._kept.pop(path, None)
            self.size += len(data) - (0 if replaced is None else len(replaced[1]))
            self._kept[path] = (signature, data)
            while self.size > self.budget:
                _, (_, dropped) = self._kept.popitem(last=False)
                self.size -= len(dropped)


def _signature(path: str) -> Signature | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
