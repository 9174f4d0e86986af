"""Temperature scaling, fitted exactly and as the public code of DAC fits it, and vector scaling.

Temperature scaling (Guo et al., On Calibration of Modern Neural Networks, ICML 2017): logits divided by T.

    T = argmin  NLL(s) = -mean_i log softmax(s z_i)[y_i],        s = 1 / T

The NLL is convex in s, with a derivative that is the mean of E_p[z] - z_y. So T is found to the last digit by bisection
on the sign of that derivative, without a learning rate. The published fit by SGD is `temperature_sgd`.

Temperature scaling as the public code of DAC fits it (Wang et al., Open-Vocabulary Calibration, ICML 2024).

    z = e^θ f·t,    θ starts at 4.6052 (a scale of 100) and follows SGD on the cross-entropy

with momentum 0.9, a weight decay of 5e-4 that acts on θ too, batches of 100 in a fixed order, and 20 epochs: the first
at a rate of 1e-5, the others along half a cosine from 0.05. Cosines are the stored logits divided by their scale. θ
depends on these settings and does not quite reach the optimum, which `temperature` finds exactly. On the other hand it
gives a number for any data, also where all predictions are right and the optimum is infinite.

Vector scaling (Guo et al., On Calibration of Modern Neural Networks, ICML 2017): a scale and a bias for every class.

    z_c ← w_c z_c + b_c        w, b = argmin  -mean_i log softmax(w z_i + b)[y_i]  +  ridge (||w - 1||² + ||b||²) / C

Without the ridge, a class that is alone above some value of its logit, or that has no validation image, has no optimum:
its w or b goes to infinity. With few images that is the rule, so a small pull towards no change is part of the method
here. It also makes the objective strictly convex: Newton's method finds the one optimum to the last digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from calprompt.calibrators.base import Calibrator, StoredLogits, calibrators, refuse_one_outcome
from calprompt.errors import SettingError

SMALLEST, LARGEST = 1e-6, 1e12  # of s, for logits that differ by 1 at most
SETTLED = 1e-12  # once a step gains no more than this it is the last one; the error after it is the square of this
MAX_STEPS = 500


@calibrators.register("temperature")
@dataclass
class Temperature(Calibrator):
    """All logits divided by one number, that of the best likelihood.

    Attributes:
        temperature: That number, after the fit.

    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> scaled = Temperature().fit(logits, torch.tensor([0, 0, 0, 1]))  # 98 % sure, 75 % right
    >>> round(scaled.temperature, 4), scaled(logits).softmax(dim=1)[0, 0].round(decimals=6).item()
    (3.641, 0.75)
    """

    keeps_argmax = True
    novel = True
    learns = ("temperature",)

    temperature: float | None = field(default=None, init=False)

    def learn(self, record: StoredLogits) -> None:
        logits = record.logits.double()
        spread = float((logits.amax(dim=1) - logits.amin(dim=1)).max())
        logits = (logits - logits.amax(dim=1, keepdim=True)) / spread  # so that the scale of logits does not matter
        at_label = logits.gather(1, record.given("labels")[:, None].to(logits.device))[:, 0]
        if slope(SMALLEST, logits, at_label) >= 0:
            raise SettingError(
                "no temperature fits: on the validation data the true class does not even have an above-average logit, "
                "so the likelihood is best when every class is equally probable. Check the labels."
            )
        if bool((at_label >= logits.max(dim=1).values).all()):
            raise SettingError(
                f"no temperature fits: all {len(logits)} validation images are classified right, "
                "so the likelihood grows without limit as confidence goes to 1. Use more validation images."
            )
        if slope(LARGEST, logits, at_label) < 0:
            raise SettingError(
                f"no temperature fits: of the {len(logits)} validation images all are classified right, or wrong by "
                "almost nothing, so the likelihood grows as confidence goes to 1. Use more validation images."
            )
        low, high = SMALLEST, LARGEST
        while high / low > 1 + 1e-15 and (middle := (low * high) ** 0.5) not in (low, high):
            low, high = (middle, high) if slope(middle, logits, at_label) < 0 else (low, middle)
        self.temperature = spread / high

    def as_step(self, record: StoredLogits) -> dict[str, Any]:
        return {"step": "divide", "by": self.temperature}


@calibrators.register("temperature_fixed")
@dataclass
class FixedTemperature(Temperature):
    """All logits divided by a given number; 1.16 is that of the released TCPT code for ViT.

    >>> FixedTemperature(2.0)(torch.tensor([[4.0, 0.0]]))
    tensor([[2., 0.]], dtype=torch.float64)
    """

    learns = ()  # type: ignore[assignment]

    temperature: float = 1.16

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise SettingError(f"must be a finite number above 0, got {self.temperature}", parameter="temperature")


def slope(s: float, logits: Tensor, at_label: Tensor) -> float:
    """Derivative of the NLL at s: mean of the expected logit minus that of the label."""
    probabilities = (s * logits).softmax(dim=1)
    return float(((probabilities * logits).sum(dim=1) - at_label).mean())


@calibrators.register("temperature_sgd")
@dataclass
class TemperatureSGD(Calibrator):
    """One scale for all cosines, fitted by stochastic gradient descent as published.

    Attributes:
        initial: Where log_scale starts.
        lr: Learning rate after the first epoch.
        epochs: Passes over the validation images.
        batch_size: Images per step.
        momentum: SGD momentum.
        weight_decay: SGD weight decay.
        warmup_lr: Learning rate of the first epoch.
        log_scale: Logarithm of the scale, after the fit.

    >>> logits, labels = torch.tensor([[4.0, 0.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1])
    >>> scaled = TemperatureSGD().fit(StoredLogits(logits, labels, logit_scale=100.0))
    >>> scaled(StoredLogits(logits, logit_scale=100.0)).softmax(dim=1)[0, 0].round(decimals=2).item()  # 75 % are right
    0.74
    """

    keeps_argmax = True
    novel = True
    needs = ("logit_scale",)
    learns = ("log_scale",)

    initial: float = 4.6052
    lr: float = 0.05
    epochs: int = 20
    batch_size: int = 100
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_lr: float = 1e-5
    log_scale: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise SettingError(f"epochs and batch_size must be at least 1, got {self.epochs} and {self.batch_size}")

    def learn(self, record: StoredLogits) -> None:
        assert record.logit_scale is not None
        self.log_scale = self.descend(record.logits.double() / record.logit_scale, record.given("labels")).log_scales[
            -1
        ]
        if not math.isfinite(self.log_scale):
            self.log_scale = None
            raise SettingError(
                f"temperature_sgd diverged at lr={self.lr}; lower it, or use the calibrator 'temperature'"
            )

    def as_step(self, record: StoredLogits) -> dict[str, Any]:
        assert record.logit_scale is not None
        assert self.log_scale is not None
        return {"step": "multiply", "by": math.exp(self.log_scale) / record.logit_scale}

    @torch.enable_grad()
    def descend(self, cosines: Tensor, labels: Tensor) -> Descent:
        """The whole fit on cosines [n, C]."""
        theta = torch.tensor(self.initial, dtype=cosines.dtype, device=cosines.device, requires_grad=True)
        cosines = cosines.detach()
        optimizer = torch.optim.SGD([theta], lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        path = Descent()
        for epoch in range(1, self.epochs + 1):
            path.rates.append(self.rate(epoch))
            optimizer.param_groups[0]["lr"] = path.rates[-1]
            for z, y in zip(cosines.split(self.batch_size), labels.split(self.batch_size), strict=True):
                optimizer.zero_grad()
                loss = F.cross_entropy(theta.exp() * z, y.to(z.device))
                loss.backward()
                optimizer.step()
                path.losses.append(float(loss.detach()))
            path.log_scales.append(float(theta.detach()))
        return path

    def rate(self, epoch: int) -> float:
        """Learning rate of an epoch, counted from 1.

        >>> [round(TemperatureSGD().rate(epoch), 6) for epoch in (1, 2, 3, 20)]
        [1e-05, 0.05, 0.049692, 0.001224]
        """
        if epoch == 1:
            return self.warmup_lr
        return 0.5 * self.lr * (1 + math.cos(math.pi * (epoch - 2) / self.epochs))


@dataclass
class Descent:
    """The course of a fit."""

    log_scales: list[float] = field(default_factory=list)  # θ after each epoch
    rates: list[float] = field(default_factory=list)  # learning rate of each epoch
    losses: list[float] = field(default_factory=list)  # loss of each step


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
