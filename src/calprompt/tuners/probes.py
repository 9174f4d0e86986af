"""Weights of classes learned on frozen features, each starting from the text features t_c of zero-shot CLIP.

    linear-probe   w_c = a t_c + r_c           CE + strength/2n ‖scale·R‖²         convex: solved in one go
    clap           w_c = unit(t_c + r_c)       CE + Σ_c λ_c ‖r_c‖²                 Silva-Rodríguez et al., CVPR 2024
    taskres        w_c = unit(t_c + α r_c)     CE                                  Yu et al., CVPR 2023

Logits are scale · v · w_c, so that the weights take the place of text features wherever these go. A class that is added
by name has no r_c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calprompt.clip.backbone import Backbone, unit
from calprompt.errors import SettingError
from calprompt.outputs import Outputs
from calprompt.tuners.base import Tuner, tuners

NEAR_ONE = 1e-3  # how strongly the linear probe's share of zero-shot weights is held to 1
LEAST_SHARE = 0.01  # of zero-shot weights: classes that are added by name have nothing else to be told apart by
CONVERGED, MOST_STEPS = 1e-6, 1000


class Probe(Tuner):
    """Base of the probes: a residual r_c for each class, zero at first."""

    learns_by_class = True

    def __init__(self, backbone: Backbone, class_names: Sequence[str], **base: Any) -> None:
        super().__init__(backbone, class_names, **base)
        self.residual = nn.Parameter(torch.zeros_like(self.frozen_text))


@tuners.register("linear-probe")
class LinearProbe(Probe):
    """Logistic regression whose weights are pulled to those of zero-shot CLIP.

    The share a of the zero-shot weights is learned too: strong pulls give zero-shot CLIP with a temperature, weak ones
    the logistic regression that knows no words. With cross-entropy alone the problem is convex and solved by L-BFGS in
    float64. The residuals of all classes sum to zero there, so a class without one stands where an average class does.

    Args:
        strength: Strength of the pull, as 1/C of scikit-learn's logistic regression.
        **base: Options of `Tuner`.
    """

    images: Tensor
    schedule = (50, 0.02)
    choices: ClassVar[Mapping[str, tuple[float, ...]]] = {"strength": (100.0, 10.0, 1.0, 0.1, 0.01, 0.001)}

    def __init__(self, backbone: Backbone, class_names: Sequence[str], *, strength: float = 1.0, **base: Any) -> None:
        if not strength > 0:
            raise SettingError(f"must be above 0, got {strength}", parameter="strength")
        self.strength = float(strength)
        super().__init__(backbone, class_names, **base)
        self.share = nn.Parameter(torch.ones_like(self.frozen_text[0, 0]))
        self.register_buffer("images", torch.ones_like(self.frozen_text[0, 0]))

    def text_features(self, image: Tensor | None = None) -> Tensor:
        return self.share * self.frozen_text + self.of_classes(self.residual)

    def terms(self, outputs: Outputs) -> dict[str, Tensor]:
        pull = self.strength / (2 * self.images) * (outputs.logit_scale * self.residual).square().sum()
        return {"pull": pull + NEAR_ONE / 2 * (self.share - 1).square()}

    @torch.no_grad()
    def begin(self, images: Tensor, labels: Tensor, weights: Mapping[str, float]) -> bool:
        self.images.fill_(images.shape[0] * images.shape[1])
        if dict(weights) != {"ce": 1.0}:
            return False
        scale = float(self.backbone.logit_scale)
        share, residual = solve_probe(
            unit(images.double().cpu()).flatten(0, 1),
            labels.cpu().repeat(len(images)),
            scale * self.frozen_text.double().cpu(),
            self.strength,
        )
        self.share.fill_(share)
        self.residual.copy_(residual / scale)
        return True


def solve_probe(images: Tensor, labels: Tensor, text: Tensor, strength: float) -> tuple[float, Tensor]:
    """The share a ≥ 0.01 and the residuals U [C, D] that minimise, in float64,

        1/n Σ_i CE(a T v_i + U v_i, y_i) + strength/2n ‖U‖² + NEAR_ONE/2 (a - 1)².

    Args:
        images: Unit features [n, D].
        labels: Class indices [n].
        text: Zero-shot weights T [C, D], with the logit scale.
        strength: Strength of the pull to them.
    """
    from scipy.optimize import minimize

    n, (C, D) = len(images), text.shape
    untuned, rows = images @ text.T, torch.arange(n)

    def objective(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        share, residual = point[0], torch.from_numpy(point[1:]).view(C, D)
        logs = (share * untuned + images @ residual.T).log_softmax(dim=1)
        slope = logs.exp()
        slope[rows, labels] -= 1
        slope /= n
        pull = strength / (2 * n) * residual.square().sum() + NEAR_ONE / 2 * (share - 1) ** 2
        value = pull - logs[rows, labels].mean()
        by_share = (slope * untuned).sum() + NEAR_ONE * (share - 1)
        by_residual = slope.T @ images + strength / n * residual
        return float(value), torch.cat([by_share[None], by_residual.flatten()]).numpy()

    start = np.zeros(1 + C * D)
    start[0] = 1.0
    bounds = [(LEAST_SHARE, None), *[(None, None)] * (C * D)]
    found = minimize(
        objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"gtol": CONVERGED, "maxiter": MOST_STEPS}
    ).x
    return float(found[0]), torch.from_numpy(found[1:]).view(C, D)


@tuners.register("clap")
class CLAP(Probe):
    """Class-adaptive linear probe: a class that zero-shot CLIP knows well is held to its zero-shot weights.

    λ_c is the mean probability that zero-shot CLIP gives to the right class of the training images of class c, as in
    the authors' code, and the mean of the others for a class without images. Their code takes the mean of the pulls,
    not their sum, on text features of their own length, about 10 for OpenAI's CLIP; here these have length 1.

    Args:
        weight: Weight of the sum of all pulls.
        **base: Options of `Tuner`.
    """

    multipliers: Tensor
    schedule = (100, 0.02)

    def __init__(self, backbone: Backbone, class_names: Sequence[str], *, weight: float = 1.0, **base: Any) -> None:
        self.weight = weight
        super().__init__(backbone, class_names, **base)
        self.register_buffer("multipliers", torch.ones_like(self.frozen_text[:, 0]))

    def text_features(self, image: Tensor | None = None) -> Tensor:
        return unit(self.frozen_text + self.of_classes(self.residual))

    @torch.no_grad()
    def begin(self, images: Tensor, labels: Tensor, weights: Mapping[str, float]) -> bool:
        logits = self.backbone.logit_scale * self.image_features(images.flatten(0, 1)) @ self.frozen_text.T
        labels = labels.to(logits.device).repeat(len(images))
        right = logits.double().softmax(dim=1).gather(1, labels[:, None])[:, 0]
        sums = torch.zeros_like(logits[0], dtype=torch.float64).index_add_(0, labels, right)
        counts = torch.bincount(labels, minlength=len(sums))
        means = sums / counts
        self.multipliers.copy_(torch.where(counts > 0, means, means[counts > 0].mean()))
        return False

    def terms(self, outputs: Outputs) -> dict[str, Tensor]:
        return {"pull": self.weight * (self.multipliers * self.residual.square().sum(dim=1)).sum()}


@tuners.register("taskres")
class TaskRes(Probe):
    """Task residual: a residual on the text features, which stay as they are.

    Args:
        alpha: Weight of the residual; the paper takes 0.5, and 1 for flowers.
        **base: Options of `Tuner`.
    """

    schedule = (100, 0.02)

    def __init__(self, backbone: Backbone, class_names: Sequence[str], *, alpha: float = 0.5, **base: Any) -> None:
        self.alpha = alpha
        super().__init__(backbone, class_names, **base)

    def text_features(self, image: Tensor | None = None) -> Tensor:
        return unit(self.frozen_text + self.alpha * self.of_classes(self.residual))
