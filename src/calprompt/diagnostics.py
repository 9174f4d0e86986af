"""How strongly each term of the objective pulls on the prompts (TCPT, supplement): norms of gradients and their ratios.

    rho_margin      ‖∇ mean part‖ / ‖∇ variance part‖ of the margin loss
    rho_mom         ‖∇ mean part‖ / ‖∇ covariance part‖ of the moment loss
    rho_mom/margin, rho_margin/CE, rho_mom/CE      of whole terms

Ratios are of the terms before their weights in the objective, as the supplement writes them (α and β belong to the
margin loss); norms, grad/NAME, are of the terms with their weights, as they act on the prompts.

A loss that has parts has a method `parts()`, which returns them as losses by name. Of the steps of an epoch, or of a
whole run, `spread` is what the supplement reports: median, 10 % and 90 % quantiles of every ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from calprompt.losses import Objective, margins
from calprompt.outputs import Outputs
from calprompt.tuners import Tuner

EPSILON = 1e-12
QUANTILES = {"median": 0.5, "q10": 0.1, "q90": 0.9}
RATIOS = {
    "rho_margin": ("margin.mean", "margin.variance"),
    "rho_mom": ("moments.mean", "moments.covariance"),
    "rho_mom/margin": ("moments", "margin"),
    "rho_margin/CE": ("margin", "ce"),
    "rho_mom/CE": ("moments", "ce"),
}


def diagnose(tuner: Tuner, objective: Objective, outputs: Outputs, terms: Mapping[str, Tensor]) -> dict[str, float]:
    """Gradient norms of all terms and parts of one step, their ratios, and the mean and variance of the margins."""
    values = objective.terms_of_tuner(outputs)
    weights: dict[str, float] = {}
    for term in objective.terms:
        parts = {f"{term.name}.{part}": loss for part, loss in getattr(term.loss, "parts", dict)().items()}
        with_parts = {term.name: terms[term.name]} | {name: loss(outputs) for name, loss in parts.items()}
        values |= with_parts
        weights |= dict.fromkeys(with_parts, abs(term.weight))
    parameters = list(tuner.parameters())
    norms = {name: gradient_norm(value, parameters) for name, value in values.items()}
    record = {f"grad/{name}": weights.get(name, 1.0) * norm for name, norm in norms.items()}
    for ratio, (above, below) in RATIOS.items():
        if above in norms and below in norms:
            record[ratio] = norms[above] / (norms[below] + EPSILON)
    m = margins(outputs.logits.detach(), outputs.labels)
    return {**record, "margin_mean": float(m.mean()), "margin_variance": float(m.var(correction=0))}


def spread(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Median, 10 % and 90 % quantiles of every ratio over some steps.

    >>> spread([{"rho_margin": 1.0, "step": 1}, {"rho_margin": 3.0, "step": 2}])
    {'rho_margin_median': 2.0, 'rho_margin_q10': 1.2, 'rho_margin_q90': 2.8}
    """
    found = {}
    for ratio in RATIOS:
        values = [step[ratio] for step in steps if ratio in step]
        for name, share in QUANTILES.items() if values else ():
            found[f"{ratio}_{name}"] = float(np.quantile(values, share))
    return found


def gradient_norm(value: Tensor, parameters: list[torch.nn.Parameter]) -> float:
    """Euclidean norm of a scalar's gradient over all parameters together; 0 if it depends on none."""
    if not value.requires_grad:
        return 0.0
    gradients = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    squares = [gradient.double().square().sum() for gradient in gradients if gradient is not None]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0
