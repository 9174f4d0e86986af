"""Temperature scaling: the optimum, what it keeps, and what it refuses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from calprompt import calibrators
from calprompt.calibrators import Temperature
from calprompt.errors import CalpromptError


def drawn(seed: int, n: int = 60, classes: int = 5, scale: float = 6.0) -> tuple[Tensor, Tensor]:
    """Logits that know something of their labels, too sure of it."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator) + 0.8 * F.one_hot(labels, classes)
    return scale * logits, labels


@given(st.integers(0, 10_000), st.integers(2, 20), st.floats(0.01, 100))
def test_is_the_optimum_and_keeps_predictions(seed: int, classes: int, scale: float) -> None:
    logits, labels = drawn(seed, classes=classes, scale=scale)
    assume(not bool((logits.argmax(dim=1) == labels).all()))
    scaled = Temperature().fit(logits, labels)
    best = F.cross_entropy(scaled(logits), labels)
    assert torch.equal(scaled(logits).argmax(dim=1), logits.argmax(dim=1))
    for other in (1.0, 0.999 * scaled.temperature, 1.001 * scaled.temperature):
        assert best <= F.cross_entropy(logits.double() / other, labels) + 1e-12


def test_scaling_the_logits_scales_the_temperature() -> None:
    logits, labels = drawn(0)
    one, seven = Temperature().fit(logits, labels), Temperature().fit(7 * logits, labels)
    assert seven.temperature == pytest.approx(7 * one.temperature, rel=1e-6)


def test_against_scipy() -> None:
    from scipy.optimize import minimize_scalar

    logits, labels = drawn(3)
    found = minimize_scalar(
        lambda t: float(F.cross_entropy(logits.double() / t, labels)), bounds=(0.1, 100), options={"xatol": 1e-10}
    )
    assert Temperature().fit(logits, labels).temperature == pytest.approx(found.x, rel=1e-6)


@pytest.mark.parametrize(
    ("logits", "labels", "says"),
    [
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), r"at least one image.*got \(0, 3\)"),
        (torch.zeros(4, 1), torch.zeros(4, dtype=torch.long), "two classes"),
        (torch.eye(3), torch.arange(3), "all 3 validation images are classified right"),
        (torch.eye(3), torch.tensor([1, 2, 0]), "no temperature fits.*Check the labels"),
        (torch.zeros(4, 3), torch.tensor([0, 1, 2, 0]), "no temperature fits"),
        (torch.tensor([[float("nan"), 0.0]]), torch.tensor([0]), "not finite"),
    ],
)
def test_degenerate_data_is_refused(logits: Tensor, labels: Tensor, says: str) -> None:
    with pytest.raises(CalpromptError, match=says):
        Temperature().fit(logits, labels)


def test_unfitted_is_refused() -> None:
    with pytest.raises(CalpromptError, match="fit the temperature"):
        Temperature()(torch.zeros(1, 2))


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(CalpromptError, match=r"unknown calibrator 'temprature'\. Did you mean 'temperature'"):
        calibrators.get("temprature")
