"""Mean-variance margin loss (TCPT, equation of L_Margin): wide margins, similar for all images.

    m_i = z_{i, y_i} - max_{j != y_i} z_{ij}          L = -alpha * mean_i m_i + beta * Var_i m_i

over the batch, on scaled logits, with the population variance. A batch of one has no variance: only the mean acts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from calprompt.losses.inputs import precise_logits
from calprompt.losses.registry import losses
from calprompt.outputs import Outputs


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Logit of the true class minus the largest other, [B, C], [B] -> [B].

    Among equal runners-up the gradient goes to one.

    Args:
        logits: Scaled logits [B, C].
        labels: True classes [B].

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
