"""A process that runs checks for another, which outlives it.

    examine ── "calprompt.doctor.storage:check_storage" ──> worker
            <── one JSON object per finding, then null ────

Importing torch can crash where a library does not fit the processor, and looking at a folder can hang where a network
disk is gone. The process that asks then says so, and starts another worker for the next check.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import IO

from calprompt.doctor.finding import PROBLEM, Finding

START = "import sys; sys.path[:] = {path!r}; from calprompt.doctor.worker import serve; serve()"
END = 1.0  # seconds for a process to end, once asked and once forced
MEANINGS = {
    "SIGSEGV": "A library is damaged, or does not fit this system; install it again.",
    "SIGILL": "A library uses an instruction that this processor does not have; install a build that suits it.",
    "SIGKILL": "The system ended it, most likely because it ran out of memory; close other programs.",
}


class Worker:
    """Runs checks in another process, which is started when it is first needed.

    Args:
        patience: Seconds to wait for each finding.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._end()

    def run(self, function: str, name: str) -> Iterator[Finding]:
        """Run one check."""
        try:
            process = self._process or self._start()
            assert process.stdin is not None
            process.stdin.write(f"{json.dumps([function, name])}\n")
            process.stdin.flush()
        except OSError as error:
            self._end()
            yield Finding(name, PROBLEM, f"could not be checked, no process can be started for it: {error}")
            return
        while True:
            try:
                line = self._answers.get(timeout=self.patience)
            except queue.Empty:
                self._end()
                yield Finding(
                    name,
                    PROBLEM,
                    f"did not finish within {self.patience:g} s and was given up",
                    "A disk or a driver that does not answer can be the reason.",
                )
                return
            if not line:
                yield self._death(name)
                return
            answer = json.loads(line)
            if answer is None:
                return
            yield Finding(**answer)

    def _start(self) -> subprocess.Popen[str]:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed when it is forgotten)
        process = subprocess.Popen(
            [sys.executable, "-c", START.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="ascii",
        )
        self._process, self._answers = process, queue.SimpleQueue()
        threading.Thread(target=_relay, args=(process.stdout, self._answers), daemon=True).start()
        return process

    def _death(self, name: str) -> Finding:
        """What is known of a process that ended in the middle of a check."""
        errors = self._errors
        code = self._end()
        end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        words = ""
        if errors is not None:
            errors.seek(0)
            words = errors.read().decode(errors="backslashreplace").strip()
        where = re.search(r'^ *File "(.*)", line (\d+)', words, re.MULTILINE)  # of the innermost call, by faulthandler
        if where:
            last = f" in {where[1]}, line {where[2]}"
        else:
            last = f"; its last words: {words.splitlines()[-1]}" if words else ""
        return Finding(name, PROBLEM, f"crashed the process of this check ({end}){last}", MEANINGS.get(end, ""))

    def _end(self) -> int:
        """End the process, if there is one, and forget it; its exit code."""
        process, self._process, self._errors = self._process, None, None
        if process is None:
            return 0
        with suppress(OSError):  # what could not be written to a process that is gone
            process.stdin.close()  # type: ignore[union-attr]
        with suppress(subprocess.TimeoutExpired):
            return process.wait(END)
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # not even that ends one that waits for a disk
            return process.wait(END)
        return 0


def serve() -> None:
    """Answer on standard output until standard input ends; what libraries print goes to standard error."""
    from calprompt.doctor.examination import run_check

    faulthandler.enable()
    with os.fdopen(os.dup(1), "w", encoding="ascii") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            for finding in run_check(*json.loads(line)):
                answers.write(f"{json.dumps(asdict(finding))}\n")
                answers.flush()
            answers.write("null\n")
            answers.flush()


def _relay(lines: IO[str], answers: queue.SimpleQueue[str]) -> None:
    """Pass lines on; an empty one says that there are no more."""
    with lines:
        for line in lines:
            answers.put(line)
    answers.put("")
