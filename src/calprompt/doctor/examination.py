"""All checks in turn, each of which may fail, hang or kill its process without harm to the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module

from calprompt.doctor.finding import NOTE, PROBLEM, Finding
from calprompt.errors import CalpromptError
from calprompt.text import os_problem

TORCH = ("torch", "imports", "importing torch")  # problems with which nothing can be computed
LOADING = (  # the same of loading a backbone
    *TORCH,
    *("numpy", "torchvision", "open_clip_torch", "safetensors", "pillow"),
    *(f"importing {name}" for name in ("numpy", "torchvision", "open_clip", "safetensors", "PIL")),
)


@dataclass(frozen=True)
class Check:
    """A check and what it needs.

    Attributes:
        section: Its name.
        function: Where it is, as "module:function": it is imported by the process that runs it. It takes no arguments
            and yields findings.
        needs: Names of findings and sections; if one of them is a problem, the check is left out.
    """

    section: str
    function: str
    needs: tuple[str, ...] = ()


CHECKS = (
    Check("installation", "calprompt.doctor.installation:check_installation"),
    Check("packages", "calprompt.doctor.installation:check_packages"),
    Check("extras", "calprompt.doctor.installation:check_extras"),
    Check("imports", "calprompt.doctor.installation:check_imports"),
    Check("machine", "calprompt.doctor.machine:check_machine", TORCH),
    Check("accelerators", "calprompt.doctor.machine:check_accelerators", TORCH),
    Check("storage", "calprompt.doctor.storage:check_storage"),
    Check("backbones", "calprompt.doctor.models:check_backbones", LOADING),
    Check("pocket", "calprompt.doctor.models:check_pocket", LOADING),
    Check("speed", "calprompt.doctor.speed:check_speed", (*LOADING, "pocket", "pocket model", "self test")),
)


def examine(checks: Sequence[Check] = CHECKS, *, patience: float = 120, apart: bool = True) -> Iterator[Finding]:
    """Run checks, and yield what each finds as soon as it is known."""
    from calprompt.doctor.worker import Worker

    broken: set[str] = set()
    with Worker(patience) as worker:
        for check in checks:
            missing = [name for name in check.needs if name in broken]
            found: Iterator[Finding]
            if missing:
                broken.add(check.section)
                found = iter([Finding(check.section, NOTE, f"not checked, because of the problem with {missing[0]}")])
            else:
                found = worker.run(check.function, check.section) if apart else run_check(check.function, check.section)
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
        yield Finding(name, PROBLEM, f"could not be checked: {describe(error)}")


def describe(error: BaseException) -> str:
    """An error on one line, with its kind where the message alone says little."""
    if isinstance(error, OSError) and error.strerror:
        return os_problem(error)
    text = " ".join(str(error).split())
    kind = type(error).__name__
    if isinstance(error, CalpromptError | ImportError) and text:
        return text
    return f"{kind}: {text}" if text else kind
