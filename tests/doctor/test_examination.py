"""Whatever is broken becomes a line with a reason, and the checks after it are still made."""

import os
import time
from pathlib import Path

import pytest

from calprompt.doctor.examination import CHECKS, Check, Finding, Worker, describe, examine
from calprompt.errors import BackboneError


def examined(*functions: str, patience: float = 60, apart: bool = True) -> list[Finding]:
    return list(examine([Check(name, f"doctor_checks:{name}") for name in functions], patience=patience, apart=apart))


@pytest.mark.parametrize("apart", [True, False])
def test_a_check_that_raises_is_a_problem_and_no_traceback(apart: bool) -> None:
    before, problem, after = examined("failing", "bad_name", apart=apart)
    assert (before.name, before.status, before.section) == ("before", "ok", "failing")
    assert (problem.name, problem.status) == ("failing", "problem")
    assert problem.value == "could not be checked: RuntimeError: driver is asleep"
    assert after.value == "caf\udce9.png"


@pytest.mark.parametrize("apart", [True, False])
def test_a_check_that_cannot_be_imported(apart: bool) -> None:
    (problem,) = examine([Check("storage", "no_such_module:check")], apart=apart)
    assert problem == Finding(
        "storage", "problem", "could not be checked: No module named 'no_such_module'", "", "storage"
    )


def test_checks_share_one_child_process() -> None:
    first, second = examined("fine", "fine")
    assert first.value == second.value != str(os.getpid())


def test_hanging_check_is_stopped() -> None:
    start = time.monotonic()
    before, problem, after = examined("hanging", "fine", patience=5)
    assert (before.status, problem.status, after.status) == ("ok", "problem", "ok")
    assert problem.value == "did not finish within 5 s and was stopped"
    assert time.monotonic() - start < 30


def test_a_check_that_crashes_says_where() -> None:
    before, problem, after = examined("segfault", "fine")
    assert (before.status, problem.status, after.status) == ("ok", "problem", "ok")
    assert problem.value.startswith("crashed the process of this check (SIGSEGV) in ")
    assert "doctor_checks.py, line " in problem.value
    assert "install it again" in problem.advice


def test_dead_check_process_shows_its_last_line_of_stderr() -> None:
    (problem,) = examined("exiting")
    words = "last line of stderr: libgomp: Thread creation failed"
    assert problem.value == f"crashed the process of this check (exit code 3); {words}"


def test_an_interpreter_that_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    (problem,) = examined("fine")
    assert problem.status == "problem"
    assert "no process can be started for it" in problem.value


def test_stopping_early_leaves_no_process() -> None:
    findings = examine([Check("fine", "doctor_checks:fine"), Check("hanging", "doctor_checks:hanging")])
    process = int(next(findings).value)
    next(findings)
    findings.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_unused_worker_ends() -> None:
    Worker(1).close()


def test_checks_with_broken_needs_are_skipped() -> None:
    """One cause is one problem, however much depends on it."""
    found = list(
        examine(
            [
                Check("failing", "doctor_checks:failing"),
                Check("second", "doctor_checks:fine", needs=("failing",)),
                Check("third", "doctor_checks:fine", needs=("second",)),
                Check("fourth", "doctor_checks:fine", needs=("before",)),
            ],
            apart=False,
        )
    )
    assert [(each.section, each.status) for each in found] == [
        ("failing", "ok"),
        ("failing", "problem"),
        ("second", "note"),
        ("third", "note"),
        ("fourth", "ok"),
    ]
    assert found[2].value == "not checked, because of the problem with failing"


def test_needs_are_earlier_checks() -> None:
    sections = [check.section for check in CHECKS]
    assert len(set(sections)) == len(sections)
    for number, check in enumerate(CHECKS):
        assert not set(check.needs) & set(sections[number:])


def test_errors_on_one_line() -> None:
    assert describe(BackboneError("weights are\ndamaged")) == "weights are damaged"
    assert describe(OSError(13, "Permission denied", "/cache")) == "/cache: Permission denied"
    assert describe(KeyError()) == "KeyError"
