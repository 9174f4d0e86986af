"""The two losses of TCPT.

Mean-variance margin loss (TCPT, equation of L_Margin): wide margins, similar for all images.

    m_i = z_{i, y_i} - max_{j != y_i} z_{ij}          L = -alpha * mean_i m_i + beta * Var_i m_i

over the batch, on scaled logits, with the population variance. A batch of one has no variance: only the mean acts.

Text moment-matching loss (TCPT, equation of L_mom): tuned class features keep the frozen ones' mean and covariance.

    L = || mu_t - mu_u ||^2 + || S_t - S_u ||_F^2        mu = mean_c t_c,   S = 1/C sum_c (t_c - mu)(t_c - mu)'

With E and A the centred [C, D] matrices of differences t - u and of means (t + u) / 2, the covariances differ by
(E'A + A'E) / C, so

    || S_t - S_u ||_F^2 = 2/C^2 * sum( EE' * AA' + AE' * EA' )        (entrywise products)

which takes C x C matrices instead of D x D ones. The only nearly equal numbers that are subtracted are t and u
themselves, so no digits are lost when they are close.

The paper takes the moments over a batch of classes without its size. Its code takes all classes, and so does the
default here; `classes` draws some.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from calprompt.errors import SettingError
from calprompt.losses.base import losses, precise_logits, tuned_and_frozen
from calprompt.outputs import Outputs


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Logit of the true class minus the largest other, [B, C], [B] -> [B].

    Among equal runners-up the gradient goes to one.

    >>> import torch
    >>> margins(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([0]))
    tensor([1.])
    """
    logits = precise_logits(logits, "margins")
    labels = labels[:, None]
    runner_up = logits.scatter(1, labels, float("-inf")).max(dim=1).values
    return logits.gather(1, labels)[:, 0] - runner_up


def mean_variance_margin(logits: Tensor, labels: Tensor, alpha: float = 0.1, beta: float = 0.01) -> Tensor:
    """-alpha * mean + beta * population variance of the margins of a batch.

    Args:
        logits: Scaled logits [B, C].
        labels: True classes [B].
        alpha: Weight of the mean.
        beta: Weight of the variance.

    >>> import torch
    >>> logits = torch.tensor([[3.0, 1.0], [1.0, 5.0]])
    >>> mean_variance_margin(logits, torch.tensor([0, 1]))  # margins 2 and 4
    tensor(-0.2900)
    """
    m = margins(logits, labels)
    return -alpha * m.mean() + beta * m.var(correction=0)


@losses.register("margin")
@dataclass(frozen=True)
class Margin:
    """`mean_variance_margin` of a step's outputs.

    Attributes:
        alpha: Weight of the mean.
        beta: Weight of the variance.
    """

    alpha: float = 0.1
    beta: float = 0.01

    def parts(self) -> dict[str, Margin]:
        return {"mean": replace(self, beta=0.0), "variance": replace(self, alpha=0.0)}

    def __call__(self, outputs: Outputs) -> Tensor:
        return mean_variance_margin(outputs.logits, outputs.labels, self.alpha, self.beta)


def text_moment_matching(
    tuned: Tensor, frozen: Tensor, *, mean_weight: float = 1.0, covariance_weight: float = 1.0
) -> Tensor:
    """Squared distance between the first two moments of two sets of class features, in float32 or better.

    Args:
        tuned: [..., C, D], unit vectors in the method; leading dimensions (images with text features of their own) are
            averaged.
        frozen: [C, D]; no gradient reaches it.
        mean_weight: Weight of the distance between means.
        covariance_weight: Weight of the distance between covariances.

    >>> eye = torch.eye(2)
    >>> text_moment_matching(eye, eye.flip(0))  # the same set of classes in another order
    tensor(0.)
    """
    tuned, frozen = tuned_and_frozen(tuned, frozen)
    apart, between = tuned - frozen, (tuned + frozen) / 2
    shift = apart.mean(dim=-2, keepdim=True)
    mean_gap = shift.square().sum(dim=(-2, -1))
    E, A = apart - shift, between - between.mean(dim=-2, keepdim=True)
    covariance_gap = covariance_gap_gram(E, A) if E.shape[-2] < E.shape[-1] else covariance_gap_full(E, A)
    return (mean_weight * mean_gap + covariance_weight * covariance_gap).mean()


def covariance_gap_full(E: Tensor, A: Tensor) -> Tensor:
    """|| E'A + A'E ||_F^2 / C^2 from D x D matrices."""
    half = E.mT @ A / E.shape[-2]
    return (half + half.mT).square().sum(dim=(-2, -1))


def covariance_gap_gram(E: Tensor, A: Tensor) -> Tensor:
    """The same from C x C matrices."""
    AE = A @ E.mT
    return 2 * ((E @ E.mT) * (A @ A.mT) + AE * AE.mT).sum(dim=(-2, -1)) / E.shape[-2] ** 2


@losses.register("moments")
@dataclass(frozen=True)
class Moments:
    """`text_moment_matching` of a step's outputs.

    Attributes:
        mean_weight: Weight of the distance between means.
        covariance_weight: Weight of the distance between covariances.
        classes: Number of classes to draw at each step, as the paper describes it; by default, all.
    """

    mean_weight: float = 1.0
    covariance_weight: float = 1.0
    classes: int | None = None

    def parts(self) -> dict[str, Moments]:
        return {"mean": replace(self, covariance_weight=0.0), "covariance": replace(self, mean_weight=0.0)}

    def __call__(self, outputs: Outputs) -> Tensor:
        tuned, frozen = outputs.text, outputs.frozen_text
        if self.classes is not None:
            if not 1 <= self.classes <= len(frozen):
                raise SettingError(f"classes of moments must be from 1 to {len(frozen)}, got {self.classes}")
            drawn = torch.randperm(len(frozen), generator=outputs.generator)[: self.classes].to(frozen.device)
            tuned, frozen = tuned.index_select(-2, drawn), frozen.index_select(-2, drawn)
        return text_moment_matching(
            tuned, frozen, mean_weight=self.mean_weight, covariance_weight=self.covariance_weight
        )
