"""What slows a machine down, and why a graphics card is not used."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from calprompt.doctor import installation as machine
from calprompt.doctor.examination import Finding
from calprompt.doctor.installation import check_accelerators, check_machine, memory, usable_cores


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine of two cores with nothing else to do, in no container, without cards."""
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine, "DEVICES", tmp_path)
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.1, 0.1), raising=False)
    monkeypatch.setattr(machine, "memory", lambda: (8 * 10**9, 6 * 10**9))
    monkeypatch.delenv(machine.THREADS, raising=False)


def found() -> dict[str, Finding]:
    return {finding.name: finding for finding in check_machine()}


def test_healthy_machine_has_no_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert {finding.status for finding in found().values()} == {"ok"}
    assert found()["processor"].value.endswith(", AVX2")
    assert found()["threads"].value == "2 cores; torch uses 2 threads"
    assert found()["memory"].value == "6.0 GB free of 8.0 GB"


def test_a_container_with_a_quota_and_too_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch counts the cores of the machine, and its threads then wait for each other."""
    monkeypatch.setattr(machine, "available_cores", lambda: 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert found()["threads"].status == "ok"
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    assert usable_cores() == 4
    assert found()["threads"].status == "note"
    assert "set OMP_NUM_THREADS=4" in found()["threads"].advice
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores() == 64
    (tmp_path / "cpu.max").write_text("10000 100000\n")
    assert usable_cores() == 1


def test_invalid_omp_num_threads_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine.THREADS, "all")
    assert found()["threads"].status == "note"
    assert "should be a number" in found()["threads"].advice


def test_slow_settings_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (8.0, 0.1, 0.1), raising=False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: machine.NO_VECTOR_UNITS)
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(machine, "memory", lambda: (2 * 10**9, 10**9))
    monkeypatch.setattr("calprompt.doctor.installation.claims_amx", lambda: True)
    monkeypatch.setattr("calprompt.doctor.installation.survives", lambda: False)
    assert {name for name, each in found().items() if each.status == "note"} == {
        "processor",
        "half precision",
        "load",
        "memory",
    }


def test_memory_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    total, free = memory()
    assert total >= free > 0
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    if Path("/proc/meminfo").exists():
        assert memory() == (1_000_000, 600_000)


def cuda(monkeypatch: pytest.MonkeyPatch, *, built: str | None, error: str = "", card: Path | None = None) -> Finding:
    """What is said of CUDA where torch has no device."""

    def init() -> None:
        if error:
            raise RuntimeError(error)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "init", init)
    if card is not None:
        (card / "nvidia0").touch()
    return next(iter(check_accelerators()))


def test_a_machine_without_a_card_has_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cuda(monkeypatch, built=None).value == "none; this build of torch is for CPUs only"
    finding = cuda(monkeypatch, built="13.2", error="Found no NVIDIA driver on your system. Please check\nthat")
    assert finding.status == "ok"
    assert finding.value == "none; torch is built for CUDA 13.2, but: Found no NVIDIA driver on your system"


def test_why_a_card_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    finding = cuda(monkeypatch, built=None, card=tmp_path)
    assert finding.status == "note"
    assert "install a build of torch with CUDA" in finding.advice
    finding = cuda(monkeypatch, built="13.2", error="The NVIDIA driver on your system is too old (found 470)")
    assert finding.status == "problem"
    assert "nvidia0 is there, but cannot be used: The NVIDIA driver on your system is too old" in finding.value
    assert "Update the driver" in finding.advice
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    finding = cuda(monkeypatch, built="13.2")
    assert (finding.status, finding.advice) == ("note", "Unset it to use them.")


def test_cards_are_made_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(number: int) -> Any:
        if number == 1:
            raise RuntimeError("device is lost")
        return SimpleNamespace(name="Card", total_memory=24 * 10**9, major=8, minor=6)

    full = torch.full

    def broken(*size: Any, device: str) -> torch.Tensor:
        if device == "cuda:2":
            raise RuntimeError("no kernel image is available for execution on the device. Compile with")
        return full(*size) + (device == "cuda:3")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch, "full", broken)
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device: ones(*size))
    cards = {finding.name: finding for finding in check_accelerators()}
    assert [cards[f"cuda:{number}"].status for number in range(4)] == ["ok", "problem", "problem", "problem"]
    assert cards["cuda:0"].value == "Card, 24.0 GB, compute capability 8.6"
    assert cards["cuda:2"].value.endswith("RuntimeError: no kernel image is available for execution on the device")
    assert cards["cuda:3"].value.endswith("computes wrong numbers")
