"""Checks that go wrong in every way, for the tests of the doctor; imported by the process that runs them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

from calprompt.doctor.examination import Finding


def fine() -> Iterator[Finding]:
    print("a library that talks")  # noqa: T201
    os.write(1, b"and one that is written in C\n")
    yield Finding("process", "ok", str(os.getpid()))


def failing() -> Iterator[Finding]:
    yield Finding("before", "ok", "found")
    raise RuntimeError("driver\nis asleep")


def hanging() -> Iterator[Finding]:
    yield Finding("before", "ok", "found")
    time.sleep(600)


def segfault() -> Iterator[Finding]:
    yield Finding("before", "ok", "found")
    os.kill(os.getpid(), signal.SIGSEGV)


def exiting() -> Iterator[Finding]:
    sys.stderr.write("libgomp: Thread creation failed\n")
    sys.stderr.flush()
    os._exit(3)
    yield


def bad_name() -> Iterator[Finding]:
    yield Finding("file", "ok", "caf\udce9.png")
