"""Devices and processors, peak memory, and the time of training steps.

A processor without units for half precision multiplies one number after another, which is measured, and said once. Some
virtual machines report AMX, the unit of Intel's processors that multiplies matrices in half precision, but not the size
of its tiles. oneDNN, with which torch multiplies, uses it all the same, and an illegal instruction kills the process.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from calprompt.errors import SettingError

if TYPE_CHECKING:
    import torch

PROCESS = Path("/proc/self")  # of Linux


def check_device(device: str) -> None:
    """Raise for an invalid device name; torch checks whether the device exists."""
    if not re.fullmatch(r"(cpu|cuda|mps|xpu|hpu|mtia|vulkan)(:\d+)?", device):
        raise SettingError(f"must be cpu, cuda, cuda:1 or the like, got {device!r}", parameter="device")


def visible_devices(names: Sequence[str]) -> list[str]:
    """Values of CUDA_VISIBLE_DEVICES for processes that see one GPU each, as cuda:0.

    >>> visible_devices(["cuda:0", "cuda:3"])
    ['0', '3']
    """
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    ids = [each.strip() for each in seen.split(",")] if seen is not None else None
    found = []
    for name in names:
        if not re.fullmatch(r"cuda:\d{1,3}", name):
            raise SettingError(f"must be GPUs such as cuda:0 and cuda:1, got {name!r}", parameter="devices")
        number = int(name.removeprefix("cuda:"))
        if ids is not None and number >= len(ids):
            raise SettingError(f"has {name}, but CUDA_VISIBLE_DEVICES is {seen!r}", parameter="devices")
        found.append(str(number) if ids is None else ids[number])
    if len(set(found)) < len(found):
        raise SettingError(f"has a GPU twice: {', '.join(names)}", parameter="devices")
    return found


def total_memory() -> int | None:
    """Bytes of memory that the machine has; None if the system does not say."""
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


@cache
def processor_name() -> str:
    with suppress(OSError):
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1].strip()
    if sys.platform == "darwin":
        with suppress(OSError, subprocess.SubprocessError):
            asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return platform.processor() or platform.machine()


def reset_peak_memory(device: str = "cpu") -> None:
    """Restart the measurement of peak memory, where the system supports that."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        (PROCESS / "clear_refs").write_text("5", encoding="ascii")


def peak_memory() -> int | None:
    """Bytes of memory that the process held at most; None if the system does not say."""
    with suppress(OSError):
        found = re.search(r"^VmHWM:\s+(\d+) kB", (PROCESS / "status").read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return 1024 * int(found[1])
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def peak_device_memory(device: str) -> int | None:
    """Bytes of an accelerator's own memory that tensors took at most; None for those that do not say, and for a CPU."""
    if not device.startswith("cuda"):
        return None
    import torch

    return int(torch.cuda.max_memory_allocated(device))


class Stopwatch:
    """Measures steps and epochs of a training by the clock, the reading of images included.

    >>> stopwatch = Stopwatch()
    >>> stopwatch.begin_epoch(); stopwatch.end_step(); stopwatch.end_epoch()
    >>> stopwatch.record()["steps"], sorted(stopwatch.record()["step_seconds"])
    (1, ['median', 'q10', 'q90'])
    """

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.epochs: list[float] = []
        self.cpu_seconds = 0.0
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """An epoch and its first step begin."""
        self._cpu = time.process_time()
        self._epoch = self._step = time.perf_counter()

    def end_step(self) -> None:
        """A step ends, and the next one begins."""
        now = time.perf_counter()
        self.steps.append(now - self._step)
        self._step = now

    def end_epoch(self) -> None:
        """An epoch ends; what is done until the next one begins, such as writing a checkpoint, does not count."""
        self.epochs.append(time.perf_counter() - self._epoch)
        self.cpu_seconds += time.process_time() - self._cpu

    def record(self) -> dict[str, object]:
        """How many steps and epochs were measured and what they took; without what was never measured."""
        found: dict[str, object] = {"steps": len(self.steps), "epochs": len(self.epochs)}
        found["cpu_seconds"] = round(self.cpu_seconds, 3)
        for name, seconds in (("step_seconds", self.steps), ("epoch_seconds", self.epochs)):
            if seconds:
                found[name] = _spread(seconds)
        return found


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    import numpy as np

    shares = {"median": 0.5, "q10": 0.1, "q90": 0.9}
    return {name: float(f"{np.quantile(seconds, share):.6g}") for name, share in shares.items()}


SLOWDOWN_LIMIT = 3.0  # times as long as in float32
PROBE = "import torch; [torch.ones(64, 64).to(d) @ torch.ones(64, 64).to(d) for d in (torch.float16, torch.bfloat16)]"


@cache
def check_half_precision(dtype: torch.dtype) -> None:
    """Make products in half precision safe, and warn if they take much longer here than in float32."""
    make_half_precision_safe()
    slower = slowdown(dtype)
    if slower > SLOWDOWN_LIMIT:
        name = str(dtype).removeprefix("torch.")
        warnings.warn(
            f"this processor has no units for {name}: a product of matrices takes {slower:.0f} times as long as in "
            "float32. Use float32 here",
            stacklevel=3,
        )


def slowdown(dtype: torch.dtype) -> float:
    """How many times as long as in float32 a product takes."""
    import torch

    seconds = []
    for kind in (torch.float32, dtype):
        matrix, times = torch.ones(256, 256, dtype=kind), []
        for _ in range(4):
            start = time.perf_counter()
            _ = matrix @ matrix
            times.append(time.perf_counter() - start)
        seconds.append(min(times))
    return seconds[1] / seconds[0]


@cache
def make_half_precision_safe() -> None:
    """Switch oneDNN off for this process, with a warning, if its products in half precision kill a process."""
    if claims_amx() and not survives():
        import torch

        torch.backends.mkldnn.set_flags(False)
        warnings.warn(
            "this processor reports AMX, but products in half precision fail, as on some virtual machines; oneDNN is "
            "switched off, which makes everything slow. Use float32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before "
            "Python starts",
            stacklevel=3,
        )


def claims_amx() -> bool:
    """Whether torch may use AMX; False if this version of torch cannot tell."""
    import torch

    is_supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(is_supported is not None and is_supported())


def survives() -> bool:
    """Whether a new process that multiplies in half precision survives, which takes some seconds.

    The exit code of a Python error is 1; a process that was killed has a negative one, on Windows one above 1.
    """
    return subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=False).returncode in (0, 1)
