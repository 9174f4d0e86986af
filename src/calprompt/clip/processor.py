"""Half precision on processors that cannot do what they say.

Some virtual machines tell of AMX, the unit of Intel's processors that multiplies matrices in half precision, but not
how large its tiles are. oneDNN, through which torch multiplies, believes them, and the process dies of an illegal
instruction.
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
    """Do without oneDNN, from now on and with a warning, if its products in half precision kill a process."""
    if claims_amx() and not survives():
        torch.backends.mkldnn.set_flags(False)
        warnings.warn(
            "this processor says that it has AMX, but products in half precision fail, as on some virtual machines; "
            "oneDNN is switched off, and all is slow. Use float32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before "
            "Python starts",
            stacklevel=3,
        )


def claims_amx() -> bool:
    """Whether torch may use AMX; if it cannot tell, no."""
    asked = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(asked is not None and asked())


def survives() -> bool:
    """Whether a process that multiplies in half precision lives: one of its own, which takes some seconds to start.

    An error of Python's, 1, is no death; a signal is below 0, and above 1 what Windows says instead.
    """
    return subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=False).returncode in (0, 1)
