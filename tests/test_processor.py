import os
import subprocess
import sys

import pytest
import torch

from calprompt import hardware
from calprompt.clip.load import load_backbone
from calprompt.hardware import check_half_precision, make_half_precision_safe
from tiny import tiny_backbone


@pytest.fixture
def machine(monkeypatch):
    """A machine that says it has AMX and fails or not, as told; what is done to torch is undone."""

    def make(*, lives: bool) -> list[str]:
        asked = []
        monkeypatch.setattr(hardware, "claims_amx", lambda: True)
        monkeypatch.setattr(hardware, "survives", lambda: asked.append("once") or lives)
        return asked

    before = torch.backends.mkldnn.enabled
    for each in (make_half_precision_safe, check_half_precision):
        each.cache_clear()
    monkeypatch.setattr(hardware, "slowdown", lambda dtype: 1.0)
    yield make
    torch.backends.mkldnn.set_flags(before)
    for each in (make_half_precision_safe, check_half_precision):
        each.cache_clear()


def use(dtype: torch.dtype, autocast: torch.dtype | None = None) -> None:
    tiny_backbone(dtype=dtype).view(autocast=autocast).encode_strings(["a cat", "a dog"])


@pytest.mark.parametrize(("dtype", "autocast"), [(torch.bfloat16, None), (torch.float32, torch.bfloat16)])
def test_where_half_precision_kills_the_process_onednn_is_switched_off(machine, dtype, autocast):
    asked = machine(lives=False)
    with pytest.warns(UserWarning, match="ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"):
        use(dtype, autocast)
    assert not torch.backends.mkldnn.enabled
    use(dtype, autocast)
    assert asked == ["once"]


def test_float32_asks_nothing(machine):
    asked = machine(lives=False)
    use(torch.float32)
    assert asked == []


def test_a_healthy_machine_keeps_onednn(machine):
    asked = machine(lives=True)
    before = torch.backends.mkldnn.enabled
    make_half_precision_safe()
    assert asked == ["once"]
    assert torch.backends.mkldnn.enabled == before


def about_units(warnings):
    """Others, such as of files that earlier tests left open, may come at any time."""
    return [str(each.message) for each in warnings if "no units" in str(each.message)]


def test_slow_half_precision_is_warned_of_once(machine, monkeypatch, recwarn):
    machine(lives=True)
    monkeypatch.setattr(hardware, "slowdown", lambda dtype: 58.0 if dtype == torch.float16 else 0.5)
    use(torch.bfloat16)
    assert not about_units(recwarn)
    with pytest.warns(UserWarning, match="no units for float16: a product of matrices takes 58 times as long"):
        use(torch.float32, torch.float16)
    use(torch.float16)
    assert not about_units(recwarn)


def test_a_processor_without_units_is_found(tmp_path):
    """oneDNN multiplies in bfloat16 with AVX-512 or AMX; held to AVX2, it is as slow as an old hardware."""
    script = "import torch; from calprompt.hardware import slowdown; print(slowdown(torch.bfloat16))"
    limits = {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, env=os.environ | limits, capture_output=True, text=True, check=True)
    assert float(done.stdout) > hardware.SLOWDOWN_LIMIT


def test_a_killed_process_is_distinguished_from_one_that_survives(monkeypatch):
    def lives(probe: str) -> bool:
        monkeypatch.setattr(hardware, "PROBE", probe)
        return hardware.survives()

    assert lives("pass")
    assert lives("raise RuntimeError")
    assert not lives("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert not lives("import os; os._exit(0x1D)")


def test_half_precision_lives_on_this_machine():
    """In a process that has multiplied in float32 before, after which oneDNN hears of no other limit."""
    torch.ones(64, 64) @ torch.ones(64, 64)
    child = os.fork()  # which may be killed
    if child == 0:
        code = 1
        try:
            make_half_precision_safe.cache_clear()
            backbone = load_backbone("pocket", dtype=torch.bfloat16)
            features = (backbone.encode_strings(["a cat"]), backbone.encode_image(torch.zeros(2, 3, 48, 48)))
            code = 0 if all(each.isfinite().all() for each in features) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
