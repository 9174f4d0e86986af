"""Half precision on processors that report an instruction set they do not have.

Some virtual machines report AMX, the unit of Intel's processors that multiplies matrices in half precision, but not
the size of its tiles. oneDNN, with which torch multiplies, uses it all the same, and an illegal instruction kills the
process.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from functools import cache

import torch

HALF = (torch.float16, torch.bfloat16)
PROBE = "import torch; [torch.ones(64, 64).to(d) @ torch.ones(64, 64).to(d) for d in (torch.float16, torch.bfloat16)]"


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
