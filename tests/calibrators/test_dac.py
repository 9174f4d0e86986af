"""DAC: by hand, base classes untouched, text features of each image, and both readings of too few base classes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from calibrators.drawn import complete, drawn
from calprompt.calibrators import DistanceAware, StoredLogits
from calprompt.errors import CalpromptError


def features(seed: int, *shape: int) -> Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def by_hand(text: Tensor, frozen: Tensor, base: Tensor, base_frozen: Tensor, k: int) -> list[float]:
    def mean(one: Tensor, others: Tensor) -> tuple[float, float]:
        near = sorted(float((one - other).norm()) for other in others.double())[:k]
        return sum(near) / len(near), near[0]

    factors = []
    for t, u in zip(text.double(), frozen.double(), strict=True):
        (now, nearest), (before, _) = mean(t, base), mean(u, base_frozen)
        factors.append(1.0 if nearest < 0.05 else float(torch.tensor(before - now).exp()))
    return factors


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 12), st.integers(1, 7))
def test_dac_is_its_formula(seed: int, classes: int, base: int, k: int) -> None:
    record = complete(drawn(seed, n=10, classes=classes)[0], None, seed=seed, base=base)
    expected = by_hand(record.text, record.frozen_text, record.base_text, record.base_frozen_text, k)  # type: ignore
    given = DistanceAware(k=k)(record)
    near = {"rtol": 1e-5, "atol": 0}  # features are float32
    for row, logits in zip(given, record.logits.double(), strict=True):
        torch.testing.assert_close(row, expected[int(logits.argmax())] * logits, **near)


@given(st.integers(0, 10_000), st.integers(2, 9))
def test_base_classes_are_left_alone(seed: int, classes: int) -> None:
    record = complete(drawn(seed, classes=classes)[0], None, seed=seed)
    record = replace(record, base_text=record.text, base_frozen_text=record.frozen_text)
    assert torch.equal(DistanceAware().factors(record), torch.ones(60, dtype=torch.float64))
    assert torch.equal(DistanceAware()(record), record.logits.double())


@pytest.mark.parametrize(("angle", "is_base"), [(0.049, True), (0.051, False)])
def test_a_class_within_the_threshold_is_a_base_class(angle: float, is_base: bool) -> None:
    base = torch.eye(4)[:2]
    text = torch.tensor([[torch.cos(torch.tensor(angle)), 0, 0, torch.sin(torch.tensor(angle))]])
    factor = DistanceAware().class_factors(text, torch.eye(4)[2:3], base, base).item()
    assert (factor == 1) is is_base


def test_factors_above_one_are_kept() -> None:
    """Tuning brought the class nearer to the base classes."""
    base = features(0, 6, 8)
    near, far = (
        F.normalize(base[:1] + 0.3 * features(1, 1, 8), dim=-1),
        -F.normalize(base.mean(dim=0, keepdim=True), dim=-1),
    )
    assert DistanceAware().class_factors(near, far, base, base).item() > 1


def test_each_image_is_scaled_from_its_own_features() -> None:
    logits = drawn(0, n=6, classes=4)[0]
    text, base = features(1, 6, 4, 8), features(2, 6, 5, 8)
    record = StoredLogits(
        logits, text=text, frozen_text=features(3, 4, 8), base_text=base, base_frozen_text=features(4, 5, 8)
    )
    factors = DistanceAware().factors(record)
    for i in range(6):
        alone = replace(record, logits=logits[i : i + 1], text=text[i], base_text=base[i])
        assert factors[i].item() == pytest.approx(DistanceAware().factors(alone).item(), rel=1e-12)
    same = replace(record, base_text=text, base_frozen_text=record.frozen_text)
    assert torch.equal(DistanceAware().factors(same), torch.ones(6, dtype=torch.float64))


def test_few_base_classes_are_averaged_or_divided_by_k() -> None:
    text, frozen, base, base_frozen = features(0, 4, 8), features(1, 4, 8), features(2, 3, 8), features(3, 3, 8)
    ours = DistanceAware(k=5).class_factors(text, frozen, base, base_frozen)
    public = DistanceAware(k=5, divisor="k").class_factors(text, frozen, base, base_frozen)
    torch.testing.assert_close(ours, DistanceAware(k=3).class_factors(text, frozen, base, base_frozen))
    torch.testing.assert_close(public, ours ** (3 / 5))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"base_text": features(0, 60, 7, 8)}, r"for each image or neither, got \[5, 8\] and \[60, 7, 8\]"),
        ({"base_text": features(0, 7, 9)}, "of the same dimension"),
        ({"base_text": torch.zeros(0, 8)}, "at least one base class"),
    ],
)
def test_features_that_do_not_fit_are_refused(change: dict, says: str) -> None:
    with pytest.raises(CalpromptError, match=says):
        DistanceAware()(replace(complete(*drawn(0)), **change))


def test_bad_options_are_refused() -> None:
    with pytest.raises(CalpromptError, match="k of dac must be at least 1"):
        DistanceAware(k=0)
    with pytest.raises(CalpromptError, match=r"unknown divisor of dac 'neighbors'. Did you mean 'neighbours'"):
        DistanceAware(divisor="neighbors")
