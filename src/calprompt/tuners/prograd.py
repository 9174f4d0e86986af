"""ProGrad: CoOp that never moves against what CLIP knows (Zhu et al., Prompt-aligned Gradient, ICCV 2023).

    g_a = ∇ (CE + added losses)        g_b = ∇ KL,   KL = -T² mean_i Σ_c softmax(z⁰_i / T)_c log softmax(z_i / T)_c
    g   = g_a                                   where cos(g_a, g_b) >= 0
        = g_a - λ (g_a · ĝ_b) ĝ_b               where they conflict, parameter by parameter

z⁰ are the untuned model's logits. Losses that are added to cross-entropy, such as TCPT's, join g_a, so that what they
ask for is projected too; `regularisers="distillation"` puts them in g_b instead. The released TCPT code adds everything
up without projection (`projection=False`).

The context starts from zeros followed by the words of the template before its slot; of a template with a comma, which
is a token but no word, the last token stays frozen before the class name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from calprompt.clip.backbone import Backbone
from calprompt.clip.open_clip_files import PLACEHOLDER
from calprompt.errors import SettingError
from calprompt.outputs import Outputs
from calprompt.registry import unknown
from calprompt.tuners.base import tuners
from calprompt.tuners.coop import CoOp

SIDES = ("cross-entropy", "distillation")


@tuners.register("prograd")
class ProGrad(CoOp):
    """CoOp with projected gradients.

    Args:
        context: How many vectors.
        from_template: Start from the words of the template before its slot; otherwise at random.
        temperature: T of the distillation.
        strength: λ of the projection.
        regularisers: The gradient that losses besides cross-entropy belong to: "cross-entropy" or "distillation".
        projection: Whether to project; otherwise there is one gradient of the plain sum.
        **coop: Options of `CoOp`.
    """

    template_table = "prograd"
    fixed_options = frozenset({"words"})

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        *,
        context: int = 16,
        template: str = "a photo of a {}.",
        from_template: bool = True,
        temperature: float = 1.0,
        strength: float = 1.0,
        regularisers: str = "cross-entropy",
        projection: bool = True,
        **coop: Any,
    ) -> None:
        if regularisers not in SIDES:
            raise unknown("value of regularisers", regularisers, SIDES)
        self.temperature, self.strength = temperature, strength
        self.regularisers, self.projection = regularisers, projection
        words = template.split("{}")[0].split() if from_template else []
        if len(words) > context:
            raise SettingError(
                f"the template {template!r} has {len(words)} words before its slot, more than context={context}; "
                "raise context or set from_template=False"
            )
        blanks = context - len(words)
        opening = " ".join([PLACEHOLDER] * blanks + words) if from_template else None
        super().__init__(backbone, class_names, context=context, words=opening, template=template, **coop)
        if from_template:
            with torch.no_grad():
                self.context[..., :blanks, :] = 0

    def check_objective(self, weights: Mapping[str, float]) -> None:
        if self.projection and self.regularisers == "distillation" and weights.get("ce") != 1:
            raise SettingError(
                "regularisers='distillation' separates plain cross-entropy from what is added to it, and the loss has "
                "no term 'ce' of weight 1; write it like 'ce + 5*moments', or use regularisers='cross-entropy'"
            )

    def terms(self, outputs: Outputs) -> dict[str, Tensor]:
        T = self.temperature
        teacher = (outputs.zero_shot_logits / T).softmax(dim=-1)
        student = (outputs.logits / T).log_softmax(dim=-1)
        return {"distillation": -(T**2) * (teacher * student).sum(dim=-1).mean()}

    def loss_parts(self, loss: Tensor, outputs: Outputs) -> tuple[Tensor, ...]:
        if not self.projection:
            return (loss,)
        if self.regularisers == "distillation":
            fit = nn.functional.cross_entropy(outputs.logits, outputs.labels)
        else:
            fit = loss - outputs.terms["distillation"]
        return fit, loss - fit

    def combine_gradients(self, *gradients: Tensor) -> Tensor:
        return project(gradients[0], gradients[1], self.strength) if self.projection else gradients[0]


def project(g_a: Tensor, g_b: Tensor, strength: float = 1.0) -> Tensor:
    """g_a without `strength` times its part against g_b, if it has one.

    >>> project(torch.tensor([1.0, -1.0]), torch.tensor([0.0, 2.0]))
    tensor([1., 0.])
    """
    direction = g_b / g_b.norm().clamp(min=torch.finfo(g_b.dtype).tiny)
    along = (g_a * direction).sum()
    return g_a - strength * along.clamp(max=0) * direction
