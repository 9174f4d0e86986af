"""Speeds are measured in about two seconds, and an estimate is called one."""

import time

import pytest
import torch

from calprompt.clip.model import encode_image
from calprompt.doctor import models
from calprompt.doctor.models import PRODUCTS, VIT_B_16, check_speed, load_embedded, per_second


def test_speed_says_what_is_measured_or_estimated() -> None:
    load_embedded("pocket")
    threads = torch.get_num_threads()
    start = time.process_time()
    images, texts, large = check_speed()
    assert time.process_time() - start < 10  # it is meant to be 2, of a machine with nothing else to do
    assert torch.get_num_threads() == threads
    assert [each.status for each in (images, texts, large)] == ["ok"] * 3
    assert "images per second on one core (measured)" in images.value
    assert "class names per second on one core (measured)" in texts.value
    assert "images per second on one core (estimated from two of its blocks)" in large.value


def test_the_median_is_not_disturbed_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lengths = 0.0, iter([9.0, 0.1, 0.1, 5.0, 0.1])

    def call() -> None:
        nonlocal now
        now += next(lengths)

    monkeypatch.setattr(models.time, "perf_counter", lambda: now)
    assert per_second(call, 5.25) == pytest.approx(10)


def test_products_equal_those_of_the_tower() -> None:
    """Counted by torch on the meta device, for towers of one, two and three blocks."""
    from dataclasses import replace

    from torch.utils.flop_counter import FlopCounterMode

    def counted(layers: int) -> float:
        tower = replace(VIT_B_16, vision_layers=layers).build().visual
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            encode_image(tower, torch.empty(1, 3, 224, 224, device="meta"))
        return counter.get_total_flops() / 2e9

    assert counted(3) - counted(2) == pytest.approx(PRODUCTS["block"], rel=0.02)
    assert counted(1) == pytest.approx(PRODUCTS["patches"] + PRODUCTS["last block"], rel=0.02)
