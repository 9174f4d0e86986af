"""Half precision on processors that have no units for it, or report an instruction set they do not have.

A processor without units multiplies in half precision one number after another, which is measured, and said once.

Some virtual machines report AMX, the unit of Intel's processors that multiplies matrices in half precision, but not
the size of its tiles. oneDNN, with which torch multiplies, uses it all the same, and an illegal instruction kills the
process.
"""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from functools import cache

import torch

HALF = (torch.float16, torch.bfloat16)
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


def slowdown(dtype: torch.dtype, size: int = 256) -> float:
    """How many times as long as in float32 a product takes."""
    seconds = []
    for kind in (torch.float32, dtype):
        matrix, times = torch.ones(size, size, dtype=kind), []
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
        torch.backends.mkldnn.set_flags(False)
        warnings.warn(
            "this processor reports AMX, but products in half precision fail, as on some virtual machines; oneDNN is "
            "switched off, which makes everything slow. Use float32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before "
            "Python starts",
            stacklevel=3,
        )


def claims_amx() -> bool:
    """Whether torch may use AMX; False if this version of torch cannot tell."""
    is_supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(is_supported is not None and is_supported())


def survives() -> bool:
    """Whether a new process that multiplies in half precision survives, which takes some seconds.

    The exit code of a Python error is 1; a process that was killed has a negative one, on Windows one above 1.
    """
    return subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=False).returncode in (0, 1)
