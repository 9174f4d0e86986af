"""Learners on features against implementations of their papers' formulas in numpy and scikit-learn, in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.func import functional_call

from calprompt.errors import SettingError
from calprompt.losses import Objective
from calprompt.training import TrainingConfig, train
from calprompt.tuners import Tuner, create
from calprompt.tuners.probes import LEAST_SHARE, NEAR_ONE, solve_probe
from tiny import BASE, build, everything, images, tiny_backbone

DOUBLE = tiny_backbone(dtype=torch.float64)
SCALE = float(DOUBLE.logit_scale)
EXACT = 1e-9  # two ways of computing in float64
LEARNERS = ("clap", "clip-adapter", "linear-probe", "taskres", "tip-adapter-f")
Matrix = np.ndarray


def moved(name: str, **options: float) -> Tuner:
    """A learner in float64 that is not where it starts."""
    tuner = create(name, DOUBLE, BASE, **options)
    data = images(tuner)
    tuner.begin(data.features[None], data.labels, {"another": 1.0})
    generator = torch.Generator().manual_seed(3)
    for parameter in tuner.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return tuner


def rows(matrix: Matrix) -> Matrix:
    return matrix / np.linalg.norm(matrix, axis=-1, keepdims=True)


def numbers(tuner: Tuner, name: str) -> Matrix:
    return tuner.get_parameter(name).detach().numpy()


def clip_adapter(tuner: Tuner, v: Matrix, t: Matrix) -> Matrix:
    hidden = np.maximum(v @ numbers(tuner, "down").T, 0)
    blended = 0.2 * np.maximum(hidden @ numbers(tuner, "up").T, 0) + 0.8 * v
    return SCALE * rows(blended) @ t.T


def tip_adapter(tuner: Tuner, v: Matrix, t: Matrix) -> Matrix:
    keys, labels = (dict(tuner.state_dict())[name].numpy() for name in ("keys", "labels"))
    affinity = np.exp(-3.0 * (1 - v @ keys.T))
    return SCALE * v @ t.T + 2.0 * affinity @ np.eye(len(t))[labels]


FORMULAS: dict[str, tuple[dict[str, float], Callable[[Tuner, Matrix, Matrix], Matrix]]] = {
    "linear-probe": ({}, lambda q, v, t: SCALE * v @ (numbers(q, "share") * t + numbers(q, "residual")).T),
    "clap": ({}, lambda q, v, t: SCALE * v @ rows(t + numbers(q, "residual")).T),
    "taskres": ({"alpha": 0.7}, lambda q, v, t: SCALE * v @ rows(t + 0.7 * numbers(q, "residual")).T),
    "clip-adapter": ({"ratio": 0.2}, clip_adapter),
    "tip-adapter": ({"alpha": 2.0, "beta": 3.0}, tip_adapter),
    "tip-adapter-f": ({"alpha": 2.0, "beta": 3.0}, tip_adapter),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_logits_against_numpy(name: str) -> None:
    options, formula = FORMULAS[name]
    tuner = moved(name, **options)
    features = everything(images(tuner))
    expected = formula(tuner, rows(features.numpy()), tuner.frozen_text.numpy())
    np.testing.assert_allclose(tuner.predict([7 * features]).numpy(), expected, atol=EXACT, rtol=0)


@pytest.mark.parametrize("name", LEARNERS)
def test_gradients_against_differences(name: str) -> None:
    tuner = moved(name)
    data = images(tuner, 4)
    objective = Objective.parse("ce")
    names, values = zip(*tuner.named_parameters(), strict=True)

    def loss(*parameters: torch.Tensor) -> torch.Tensor:
        outputs = functional_call(tuner, dict(zip(names, parameters, strict=True)), (everything(data), data.labels))
        return objective(outputs)[0]

    assert torch.autograd.gradcheck(loss, values, eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
def test_probe_without_words_is_scikit_learns_logistic_regression(strength: float) -> None:
    rng = np.random.default_rng(0)
    x, y = rows(rng.normal(size=(60, 6))), rng.integers(0, 4, 60)
    _, found = solve_probe(torch.from_numpy(x), torch.from_numpy(y), torch.zeros(4, 6, dtype=torch.float64), strength)
    model = LogisticRegression(C=1 / strength, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(x, y)
    np.testing.assert_allclose(found.numpy(), model.coef_, atol=1e-4 * np.abs(model.coef_).max())


def test_probe_with_words_is_where_no_direction_goes_down() -> None:
    rng = np.random.default_rng(1)
    x, t, y = rows(rng.normal(size=(40, 5))), 3 * rng.normal(size=(3, 5)), rng.integers(0, 3, 40)
    share, found = solve_probe(*map(torch.from_numpy, (x, y, t)), 0.5)
    residual = found.numpy()

    def value(a: float, u: Matrix) -> float:
        z = x @ (a * t + u).T
        likelihood = z[np.arange(40), y] - np.log(np.exp(z).sum(axis=1))
        return -likelihood.mean() + 0.5 / 80 * (u**2).sum() + NEAR_ONE / 2 * (a - 1) ** 2

    best = value(share, residual)
    for _ in range(200):
        step, by = rng.normal(size=residual.shape), rng.normal()
        assert value(max(LEAST_SHARE, share + 1e-3 * by), residual + 1e-3 * step) >= best - 1e-10
    assert np.abs(residual.sum(axis=0)).max() < 1e-4, "a class without a residual is an average class"


def test_probe_that_is_pulled_hard_is_zero_shot_with_a_temperature() -> None:
    tuner, data = build("linear-probe"), images(build("linear-probe"))
    strong = create("linear-probe", tuner.backbone, BASE, strength=1e9)
    train(strong, data, Objective.parse("ce"), TrainingConfig())
    assert strong.residual.abs().max() < 1e-6
    assert 0 <= strong.share.item() < 5


def test_pull_of_clap_is_how_well_zero_shot_knows_a_class() -> None:
    tuner = moved("clap")
    data = images(tuner)
    features, labels = rows(data.features.numpy()), data.labels.numpy()
    logits = SCALE * features @ tuner.frozen_text.numpy().T
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = np.array([p[labels == c, c].mean() for c in range(len(BASE))])
    np.testing.assert_allclose(tuner.multipliers.numpy(), expected, atol=EXACT)
    pull = tuner(data.features, data.labels).terms["pull"].item()
    assert pull == pytest.approx((expected * (numbers(tuner, "residual") ** 2).sum(axis=1)).sum())


def test_several_views_are_averaged_in_the_cache_and_all_learned_by_the_probe() -> None:
    views = torch.randn(3, 4, DOUBLE.embed_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 4])
    cache, probe = create("tip-adapter", DOUBLE, BASE), create("linear-probe", DOUBLE, BASE)
    assert cache.begin(views, labels, {"ce": 1.0})
    np.testing.assert_allclose(cache.keys.numpy(), rows(rows(views.numpy()).mean(axis=0)), atol=EXACT)
    assert probe.begin(views, labels, {"ce": 1.0})
    assert float(probe.images) == 12


def test_what_cannot_be_is_refused() -> None:
    for name, options in (("linear-probe", {"strength": 0.0}), ("clip-adapter", {"ratio": 1.5})):
        with pytest.raises(SettingError, match=f"{next(iter(options))} must be"):
            create(name, DOUBLE, BASE, **options)
    with pytest.raises(SettingError, match="reduction must be at least 1"):
        create("clip-adapter", DOUBLE, BASE, reduction=0)
