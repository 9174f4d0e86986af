"""Processor, threads, memory and accelerators, and why one of them cannot be used."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from calprompt.doctor.examination import NOTE, OK, PROBLEM, Finding, describe, note, ok, problem
from calprompt.hardware import claims_amx, processor_name, survives, total_memory
from calprompt.parallel import available_cores
from calprompt.text import format_size, plural

CGROUP = Path("/sys/fs/cgroup")  # what a container may use
DEVICES = Path("/dev")
LOW_MEMORY = 2 * 10**9  # bytes of memory in which a ViT-B/16 has little room
THREADS = "OMP_NUM_THREADS"
NO_VECTOR_UNITS = "DEFAULT"  # what torch says of a processor whose wide instructions it cannot use


def check_machine() -> Iterator[Finding]:
    """Processor, threads, load and memory."""
    capability = torch.backends.cpu.get_cpu_capability()
    if capability == NO_VECTOR_UNITS and platform.machine().lower() in ("x86_64", "amd64"):
        yield note("processor", f"{processor_name()}, without AVX2", "Everything will take several times as long.")
    else:
        yield ok("processor", f"{processor_name()}, {capability}")
    if claims_amx():
        if survives():
            yield ok("half precision", "AMX works")
        else:
            yield note(
                "half precision",
                "the processor reports AMX, but products in half precision fail, as on some virtual machines",
                "Use float32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before Python starts.",
            )
    yield _threads()
    with suppress(OSError, AttributeError):  # Windows has no load
        load, cores = os.getloadavg()[0], usable_cores()
        if load > 1.5 * cores:
            yield note(
                "load",
                f"{load:.1f} on {plural(cores, 'core')}: other programs keep it busy",
                "Everything takes longer meanwhile, and the speeds below are lower than they could be.",
            )
    total, free = memory()
    if total:
        enough = free >= LOW_MEMORY
        advice = "" if enough else "A ViT-B/16 with many classes may not fit: close other programs, or give --chunk N."
        yield Finding("memory", OK if enough else NOTE, f"{format_size(free)} free of {format_size(total)}", advice)


def check_accelerators() -> Iterator[Finding]:
    """Graphics cards that torch can compute on, or why there are none."""
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            yield _cuda(number)
    else:
        yield _no_cuda()
    if sys.platform == "darwin":
        if torch.backends.mps.is_available():
            yield Finding("mps", *_computes("mps", "Apple's graphics processor"))
        else:
            built = "this macOS is too old" if torch.backends.mps.is_built() else "this torch is built without it"
            yield ok("mps", f"not available: {built}")


def usable_cores() -> int:
    """How many cores' worth of time this process gets: those it may use, or less in a container with a quota."""
    cores = available_cores()
    with suppress(OSError, ValueError):
        quota, period = (CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores, round(int(quota) / int(period))))  # "max" is not a number
    return cores


def memory() -> tuple[int, int]:
    """Bytes of memory in all, and free; zeros if this system does not tell."""
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        values = {name: 1024 * int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
        total, free = values["MemTotal"], values["MemAvailable"]
        with suppress(OSError, ValueError):
            limit = int((CGROUP / "memory.max").read_text(encoding="ascii"))  # "max" is not a number
            used = int((CGROUP / "memory.current").read_text(encoding="ascii"))
            total, free = min(total, limit), min(free, max(0, limit - used))
        return total, free
    total = total_memory() or 0
    return total, total


def _threads() -> Finding:
    cores, threads, setting = usable_cores(), torch.get_num_threads(), os.environ.get(THREADS)
    value = f"{plural(cores, 'core')}; torch uses {plural(threads, 'thread')}"
    value += f" ({THREADS}={setting})" if setting else ""
    if setting and not setting.replace(",", "").isdecimal():
        return note("threads", value, f"{THREADS} should be a number; it is ignored.")
    if threads > cores:
        advice = f"Threads that wait for each other can be ten times slower: set {THREADS}={cores}."
        return note("threads", value, advice)
    return ok("threads", value)


def _cuda(number: int) -> Finding:
    name = f"cuda:{number}"
    try:
        about = torch.cuda.get_device_properties(number)
        title = f"{about.name}, {format_size(about.total_memory)}, compute capability {about.major}.{about.minor}"
    except Exception as error:
        return problem(name, describe(error), "The driver does not answer as it should; restart the machine.")
    return Finding(name, *_computes(name, title))


def _computes(device: str, title: str) -> tuple[str, str, str]:
    """Status, value and advice, from a small product on the device."""
    try:
        right = torch.full((64, 64), 0.5, device=device).matmul(torch.ones(64, 64, device=device)).eq(32).all().item()
    except Exception as error:
        sentence = describe(error).partition(". ")[0]
        return PROBLEM, f"{title}: {sentence}", "Install a build of torch for this card, or compute with --device cpu."
    if not right:
        return PROBLEM, f"{title}: computes wrong numbers", "Compute with --device cpu, and have the card looked at."
    return OK, title, ""


def _no_cuda() -> Finding:
    """Why torch has no graphics card; a problem only where there is one."""
    cards = sorted(path.name for path in DEVICES.glob("nvidia[0-9]*"))
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch.version.cuda is None and torch.version.hip is None:
        if not cards:
            return ok("CUDA", "none; this build of torch is for CPUs only")
        advice = "To use it, install a build of torch with CUDA; until then everything runs on the CPU."
        return note("CUDA", f"not used: {', '.join(cards)} is there, but this build of torch is for CPUs only", advice)
    built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built for ROCm"
    if hidden in ("", "-1", "none"):
        return note("CUDA", f"none; CUDA_VISIBLE_DEVICES={hidden!r} hides all cards", "Unset it to use them.")
    reason = "no card was found"
    try:
        torch.cuda.init()
    except Exception as error:
        reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
    if not cards:
        return ok("CUDA", f"none; {built}, but: {reason}")
    advice = "Update the driver of the card, or install a build of torch for the CUDA version that the driver has."
    return problem("CUDA", f"{', '.join(cards)} is there, but cannot be used: {reason} ({built})", advice)
