"""A server for a benchmark: `calprompt serve` in a process of its own, on a free port of this machine."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def serving(
    place: str | Path, *options: str, log: IO[str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The server's process and port; it is stopped at the end, if it still runs.

    Args:
        place: Folder of a model, or of models.
        options: Of the command.
        log: For what it writes to standard error.
    """
    command = [sys.executable, "-m", "calprompt", "serve", str(place), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        assert process.stdout is not None
        try:
            said = ""
            while (found := re.search(r"http://[\d.]+:(\d+)/", said)) is None:
                line = process.stdout.readline()
                assert line, f"the server did not start: {said}"
                said += line
            yield process, int(found[1])
        finally:
            process.terminate()
