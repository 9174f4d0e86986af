"""Vector scaling (Guo et al., On Calibration of Modern Neural Networks, ICML 2017): a scale and a bias for every class.

    z_c ← w_c z_c + b_c        w, b = argmin  -mean_i log softmax(w z_i + b)[y_i]  +  ridge (||w - 1||² + ||b||²) / C

Without the ridge, a class that is alone above some value of its logit, or that has no validation image, has no optimum:
its w or b goes to infinity. With few images that is the rule, so a small pull towards no change is part of the method
here. It also makes the objective strictly convex: Newton's method finds the one optimum to the last digits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from calprompt.calibrators.base import Calibrator, StoredLogits, calibrators, refuse_one_outcome
from calprompt.errors import SettingError

SETTLED = 1e-12  # once a step gains no more than this it is the last one; the error after it is the square of this
MAX_STEPS = 500


@calibrators.register("vector")
@dataclass
class Vector(Calibrator):
    """A scale and a bias for each class's logit, those of the best likelihood; only for the classes of the fit.

    Attributes:
        ridge: Weight of the pull towards no change.
        scale: Scale of each class, after the fit.
        bias: Bias of each class, after the fit.

    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> scaled = Vector(ridge=1e-6).fit(logits, torch.tensor([0, 0, 0, 1]))  # 98 % sure, 75 % right
    >>> scaled(logits).softmax(dim=1)[0].round(decimals=3).tolist()
    [0.75, 0.25]
    """

    keeps_argmax = False
    novel = False
    learns = ("scale", "bias")

    ridge: float = 1e-3
    scale: list[float] | None = field(default=None, init=False)
    bias: list[float] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.ridge > 0:
            raise SettingError(f"ridge of vector scaling must be above 0, or no optimum may exist; got {self.ridge}")

    def learn(self, record: StoredLogits) -> None:
        refuse_one_outcome(record, self.name)
        z, labels = record.logits.double(), record.given("labels").long().to(record.logits.device)
        C = z.shape[1]
        w, b = z.new_ones(C), z.new_zeros(C)
        for _ in range(MAX_STEPS):
            gradient, hessian = self.derivatives(z, labels, w, b)
            factor, failed = torch.linalg.cholesky_ex(hessian)
            if int(failed):
                break
            step = torch.cholesky_solve(gradient[:, None], factor)[:, 0]
            gain = float(gradient @ step) / 2
            if gain <= SETTLED:
                self.scale, self.bias = (w - step[:C]).tolist(), (b - step[C:]).tolist()
                return
            length, now = 1.0, self.objective(z, labels, w, b)
            while self.objective(z, labels, w - length * step[:C], b - length * step[C:]) > now - 0.5 * length * gain:
                length /= 2
            w, b = w - length * step[:C], b - length * step[C:]
        raise SettingError(
            f"vector scaling did not converge: the optimum is too far away or too flat for ridge={self.ridge}; "
            "use a larger one"
        )

    def objective(self, z: Tensor, labels: Tensor, w: Tensor, b: Tensor) -> float:
        """What is minimised."""
        pull = ((w - 1).square().sum() + b.square().sum()) / len(w)
        return float(F.cross_entropy(w * z + b, labels) + self.ridge * pull)

    def derivatives(self, z: Tensor, labels: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient [2 C] and Hessian [2 C, 2 C] with respect to the scales, then the biases."""
        n, C = z.shape
        p = (w * z + b).softmax(dim=1)
        off = p - F.one_hot(labels, C)
        both = torch.cat([p * z, p], dim=1)  # [n, 2 C]
        hessian = -both.mT @ both / n
        blocks = hessian.view(2, C, 2, C)
        for i, j, power in ((0, 0, 2), (0, 1, 1), (1, 0, 1), (1, 1, 0)):
            blocks[i, :, j].diagonal().add_((p * z**power).mean(dim=0))
        hessian.diagonal().add_(2 * self.ridge / C)
        pull = torch.cat([w - 1, b]) * (2 * self.ridge / C)
        return torch.cat([(off * z).mean(dim=0), off.mean(dim=0)]) + pull, hessian

    def as_step(self, record: StoredLogits) -> dict[str, Any]:
        assert self.scale is not None
        if record.logits.shape[1] != len(self.scale):
            raise SettingError(
                f"vector scaling was fitted on {len(self.scale)} classes and cannot be applied to "
                f"{record.logits.shape[1]}; for other classes use temperature or dac"
            )
        return {"step": "affine", "scale": self.scale, "bias": self.bias}
