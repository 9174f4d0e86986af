"""Gradient norms of the objective's terms: equal to those of separate backward passes, and free when off."""

from __future__ import annotations

import pytest
import torch

from calprompt.losses import Objective
from calprompt.training import TrainingConfig, train, training_step
from calprompt.tuners import CoOp, KgCoOp
from test_train import BACKBONE, NAMES, data

TCPT = Objective.parse("ce + 2*margin + 5*moments(classes=2)")


def norm_of(loss: str, weight: float) -> float:
    tuner = KgCoOp(BACKBONE, NAMES)
    outputs = tuner(data().features, data().labels, seed=7)
    (term,) = Objective.parse(loss).terms
    (gradient,) = torch.autograd.grad(weight * term.loss(outputs), [tuner.context])
    return float(gradient.norm())


def test_norms_and_ratios_are_those_of_separate_gradients() -> None:
    tuner = KgCoOp(BACKBONE, NAMES)
    optimizer = torch.optim.SGD(tuner.parameters(), lr=0.0)
    found = training_step(tuner, optimizer, TCPT, data().features, data().labels, seed=7, diagnosed=True).values
    expected = {
        "grad/ce": norm_of("ce", 1),
        "grad/margin": norm_of("margin", 2),
        "grad/margin.mean": norm_of("margin(beta=0.0)", 2),
        "grad/margin.variance": norm_of("margin(alpha=0.0)", 2),
        "grad/moments": norm_of("moments(classes=2)", 5),
        "grad/moments.mean": norm_of("moments(classes=2, covariance_weight=0.0)", 5),
        "grad/moments.covariance": norm_of("moments(classes=2, mean_weight=0.0)", 5),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-4), name
    assert "grad/knowledge" in found, "the tuner's own terms too"
    assert found["rho_margin"] == pytest.approx(
        expected["grad/margin.mean"] / expected["grad/margin.variance"], rel=1e-4
    )
    ce, margin, moments = (norm_of(loss, 1) for loss in ("ce", "margin", "moments(classes=2)"))  # without weights
    assert found["rho_mom/CE"] == pytest.approx(moments / ce, rel=1e-4)
    assert found["rho_margin/CE"] == pytest.approx(margin / ce, rel=1e-4)
    assert found["rho_mom/margin"] == pytest.approx(moments / margin, rel=1e-4)
    assert {"rho_mom", "margin_mean", "margin_variance"} <= set(found)


def test_looking_changes_nothing() -> None:
    trained = []
    for every in (0, 1, 3):
        tuner = CoOp(BACKBONE, NAMES, context=4)
        history = train(tuner, data(), TCPT, TrainingConfig(epochs=4, batch_size=2, diagnose_every=every))
        trained.append(tuner.context.detach())
        looked = [any(name.startswith("grad/") for name in record) for record in history]
        assert looked == [every > 0] * 4
    assert torch.equal(trained[0], trained[1])
    assert torch.equal(trained[0], trained[2])


def test_an_interval_longer_than_an_epoch_leaves_epochs_without() -> None:
    tuner = CoOp(BACKBONE, NAMES, context=4)
    history = train(tuner, data(), TCPT, TrainingConfig(epochs=4, batch_size=2, diagnose_every=6))
    assert ["rho_margin" in record for record in history] == [True, False, True, False]
