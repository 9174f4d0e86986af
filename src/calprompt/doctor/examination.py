"""All checks in turn, each of which may fail, hang or kill its process without harm to the others.

Importing torch can crash where a library does not fit the processor, and looking at a folder can hang where a network
disk is gone. So checks run in a process of their own, which is sent their names and answers with a JSON object for each
finding; if it ends, that is a finding, and another is started for the next check.
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
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import IO

from calprompt.errors import CalpromptError
from calprompt.text import os_problem

OK = "ok"
NOTE = "note"  # worth knowing, and nothing is broken
PROBLEM = "problem"  # something will not work until it is mended


@dataclass(frozen=True)
class Finding:
    """One line of what `calprompt doctor` says."""

    name: str  # what was looked at, such as "torch"
    status: str  # ok, note or problem
    value: str  # what was found
    advice: str = ""  # what to do about it, or what it means; may be empty
    section: str = ""  # the check that it belongs to


def ok(name: str, value: str, advice: str = "") -> Finding:
    return Finding(name, OK, value, advice)


def note(name: str, value: str, advice: str = "") -> Finding:
    return Finding(name, NOTE, value, advice)


def problem(name: str, value: str, advice: str = "") -> Finding:
    return Finding(name, PROBLEM, value, advice)


TORCH = ("torch", "imports", "importing torch")  # problems with which nothing can be computed
LOADING = (  # the same of loading a backbone
    *TORCH,
    *("numpy", "torchvision", "open_clip_torch", "safetensors", "pillow"),
    *(f"importing {name}" for name in ("numpy", "torchvision", "open_clip", "safetensors", "PIL")),
)


@dataclass(frozen=True)
class Check:
    """A check and what it needs."""

    section: str  # its name
    function: str  # "module:function", imported by the process that runs it; it yields findings
    needs: tuple[str, ...] = ()  # names of findings and sections; if one of them is a problem, the check is left out


CHECKS = (
    Check("installation", "calprompt.doctor.installation:check_installation"),
    Check("packages", "calprompt.doctor.installation:check_packages"),
    Check("extras", "calprompt.doctor.installation:check_extras"),
    Check("imports", "calprompt.doctor.installation:check_imports"),
    Check("machine", "calprompt.doctor.installation:check_machine", TORCH),
    Check("accelerators", "calprompt.doctor.installation:check_accelerators", TORCH),
    Check("storage", "calprompt.doctor.installation:check_storage"),
    Check("backbones", "calprompt.doctor.models:check_backbones", LOADING),
    Check("pocket", "calprompt.doctor.models:check_pocket", LOADING),
    Check("speed", "calprompt.doctor.models:check_speed", (*LOADING, "pocket", "pocket model", "self test")),
)

GPU_CHECKS = (
    Check("accelerators", "calprompt.doctor.installation:check_accelerators"),
    Check("GPU", "calprompt.doctor.models:check_gpu"),
)


def examine(checks: Sequence[Check] = CHECKS, *, patience: float = 120, apart: bool = True) -> Iterator[Finding]:
    """Run checks, and yield what each finds as soon as it is known."""

    broken: set[str] = set()
    with closing(Worker(patience)) as worker:
        for check in checks:
            missing = [name for name in check.needs if name in broken]
            found = (worker.run if apart else run_check)(check.function, check.section)
            if missing:
                broken.add(check.section)
                found = iter([note(check.section, f"not checked, because of the problem with {missing[0]}")])
            for finding in found:
                finding = replace(finding, section=check.section)
                if finding.status == PROBLEM:
                    broken.add(finding.name)
                yield finding


def run_check(function: str, name: str) -> Iterator[Finding]:
    """Run a check in this process; an error is a finding too."""
    module, _, attribute = function.partition(":")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check: Callable[[], Iterator[Finding]] = getattr(import_module(module), attribute)
            yield from check()
    except Exception as error:  # nothing may come out of a doctor as a traceback
        yield problem(name, f"could not be checked: {describe(error)}")


def describe(error: BaseException) -> str:
    """An error on one line, with its kind where the message alone says little."""
    if isinstance(error, OSError) and error.strerror:
        return os_problem(error)
    text = " ".join(str(error).split())
    kind = type(error).__name__
    if isinstance(error, CalpromptError | ImportError) and text:
        return text
    return f"{kind}: {text}" if text else kind


START = "import sys; sys.path[:] = {path!r}; from calprompt.doctor.examination import serve; serve()"
END = 1.0  # seconds for a process to end, once asked and once forced
MEANINGS = {
    "SIGSEGV": "A library is damaged, or does not fit this system; install it again.",
    "SIGILL": "A library uses an instruction that this processor does not have; install a build that suits it.",
    "SIGKILL": "The system ended it, most likely because it ran out of memory; close other programs.",
}


class Worker:
    """Runs checks in another process, which is started when it is first needed."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors: IO[bytes] | None = None

    def run(self, function: str, name: str) -> Iterator[Finding]:
        """Run one check."""
        try:
            process = self._process or self._start()
            assert process.stdin is not None
            process.stdin.write(f"{json.dumps([function, name])}\n")
            process.stdin.flush()
        except OSError as error:
            self.close()
            yield problem(name, f"could not be checked, no process can be started for it: {error}")
            return
        while True:
            try:
                line = self._answers.get(timeout=self.patience)
            except queue.Empty:
                self.close()
                yield problem(
                    name,
                    f"did not finish within {self.patience:g} s and was stopped",
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
        """The finding for a process that died during a check."""
        errors = self._errors
        code = self.close()
        end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        words = ""
        if errors is not None:
            errors.seek(0)
            words = errors.read().decode(errors="backslashreplace").strip()
        where = re.search(r'^ *File "(.*)", line (\d+)', words, re.MULTILINE)  # of the innermost call, by faulthandler
        if where:
            last = f" in {where[1]}, line {where[2]}"
        else:
            last = f"; last line of stderr: {words.splitlines()[-1]}" if words else ""
        return problem(name, f"crashed the process of this check ({end}){last}", MEANINGS.get(end, ""))

    def close(self) -> int:
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
