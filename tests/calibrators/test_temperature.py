"""Temperature scaling: the optimum, what it keeps, and what it refuses; and the published descent towards it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from calibrators.drawn import drawn
from calprompt.calibrators import StoredLogits, Temperature, TemperatureSGD
from calprompt.errors import CalpromptError


@given(st.integers(0, 10_000), st.integers(2, 20), st.floats(0.01, 100))
def test_is_the_optimum_and_keeps_predictions(seed: int, classes: int, scale: float) -> None:
    logits, labels = drawn(seed, classes=classes, scale=scale)
    assume(not bool((logits.argmax(dim=1) == labels).all()))
    scaled = Temperature().fit(logits, labels)
    best = F.cross_entropy(scaled(logits), labels)
    assert torch.equal(scaled(logits).argmax(dim=1), logits.argmax(dim=1))
    assert scaled.temperature is not None
    for other in (1.0, 0.999 * scaled.temperature, 1.001 * scaled.temperature):
        assert best <= F.cross_entropy(logits.double() / other, labels) + 1e-12


def test_scaling_the_logits_scales_the_temperature() -> None:
    logits, labels = drawn(0)
    one = Temperature().fit(logits.double(), labels)
    for scale in (1e-30, 1e-8, 7, 1e8, 1e30):
        other = Temperature().fit(scale * logits.double(), labels)
        assert other.temperature == pytest.approx(scale * one.temperature, rel=1e-12)


def test_against_scipy() -> None:
    from scipy.optimize import minimize_scalar

    logits, labels = drawn(3)
    found = minimize_scalar(
        lambda t: float(F.cross_entropy(logits.double() / t, labels)), bounds=(0.1, 100), options={"xatol": 1e-10}
    )
    assert Temperature().fit(logits, labels).temperature == pytest.approx(found.x, rel=1e-6)


ALMOST = torch.tensor([[1.0, 0.0], [1e-13, 0.0], [1e-14, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("logits", "labels", "says"),
    [
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), r"at least one image.*got \(0, 3\)"),
        (torch.zeros(4, 1), torch.zeros(4, dtype=torch.long), "two classes"),
        (torch.eye(3), torch.arange(3), "all 3 validation images are classified right"),
        (torch.eye(3), torch.tensor([1, 2, 0]), "no temperature fits.*Check the labels"),
        (torch.zeros(4, 3), torch.tensor([0, 1, 2, 0]), "nothing to fit"),
        (ALMOST, torch.tensor([0, 0, 1]), "all are classified right, or wrong by almost nothing"),
        (torch.tensor([[float("nan"), 0.0]]), torch.tensor([0]), "must be finite"),
    ],
)
def test_degenerate_data_is_refused(logits: Tensor, labels: Tensor, says: str) -> None:
    with pytest.raises(CalpromptError, match=says):
        Temperature().fit(logits, labels)


def test_descent_converges_to_the_optimum() -> None:
    logits, labels = drawn(2)
    record = StoredLogits(logits, labels, logit_scale=100.0)
    patient = TemperatureSGD(epochs=300, batch_size=60, weight_decay=0.0).fit(record)
    assert patient.log_scale is not None
    assert 100 / math.exp(patient.log_scale) == pytest.approx(Temperature().fit(record).temperature, rel=1e-3)


def test_the_descent_does_not_depend_on_the_stored_logit_scale() -> None:
    logits, labels = drawn(2)
    one = TemperatureSGD().fit(StoredLogits(logits, labels, logit_scale=100.0))
    two = TemperatureSGD().fit(StoredLogits(logits / 2, labels, logit_scale=50.0))
    assert one.log_scale == pytest.approx(two.log_scale, rel=1e-9)
    torch.testing.assert_close(
        one(StoredLogits(logits, logit_scale=100.0)),
        two(StoredLogits(logits / 2, logit_scale=50.0)),
        rtol=1e-6,
        atol=1e-6,
    )


@torch.no_grad()
def test_the_descent_does_not_mind_no_grad() -> None:
    logits, labels = drawn(2)
    assert TemperatureSGD().fit(StoredLogits(logits, labels, logit_scale=100.0)).log_scale != 4.6052


def test_a_descent_that_diverges_is_refused() -> None:
    logits, labels = drawn(2)
    with pytest.raises(CalpromptError, match=r"diverged at lr=1000000"):
        TemperatureSGD(lr=1e6).fit(StoredLogits(logits, labels, logit_scale=1.0))
