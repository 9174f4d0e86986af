"""CoOp and the two methods that add something to it.

CoOp: context vectors learned in place of a prompt's words (Zhou et al., Learning to Prompt for VLMs, IJCV 2022).

    [start] v1 … vn  name . [end]          v1 … vn shared by all classes, or different for each class

KgCoOp: CoOp pulled towards the hand-written prompts (Yao et al., Visual-Language Prompt Tuning …, CVPR 2023).

    L = CE + 8 (1 - mean_c cos(t_c, u_c))        u_c the untuned text feature of class c

The released TCPT code trains something else under this name: no pull towards u, but 0.1 times the mean |cosine| between
the features of different classes (`pull="orthogonality"`).

ProGrad: CoOp that never moves against what CLIP knows (Zhu et al., Prompt-aligned Gradient, ICCV 2023).

    g_a = ∇ (CE + added losses)        g_b = ∇ KL,   KL = -T² mean_i Σ_c softmax(z⁰_i / T)_c log softmax(z_i / T)_c
    g   = g_a                                   where cos(g_a, g_b) >= 0
        = g_a - λ (g_a · ĝ_b) ĝ_b               where they conflict, parameter by parameter

z⁰ are the untuned model's logits. Losses that are added to cross-entropy, such as TCPT's, join g_a, so that what they
ask for is projected too; `regularisers="distillation"` puts them in g_b instead. The released TCPT code adds everything
up without projection (`projection=False`). The context starts from zeros followed by the words of the template before
its slot; of a template with a comma, which is a token but no word, the last token stays frozen before the class name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from calprompt.clip.backbone import Backbone, unit
from calprompt.clip.open_clip_files import PLACEHOLDER
from calprompt.errors import SettingError
from calprompt.outputs import Outputs
from calprompt.registry import unknown
from calprompt.tuners.base import Tuner, at_least_one, tuners

PULLS = {"knowledge": 8.0, "orthogonality": 0.1}  # of KgCoOp, and their weights
SIDES = ("cross-entropy", "distillation")  # of ProGrad's two gradients


@tuners.register("coop")
class CoOp(Tuner):
    """Learns context vectors before, around or after the class name.

    Args:
        context: How many vectors; one per token of the words, or 16, unless given. Further words stay frozen.
        words: The context starts from their embeddings; at random, unless given.
        position: Where the class name stands: "end", "middle" or "front".
        class_specific: Every class has its own vectors, which cannot be used for other classes.
        **base: Options of `Tuner`.
    """

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        *,
        context: int | None = None,
        words: str | None = None,
        position: str = "end",
        class_specific: bool = False,
        **base: Any,
    ) -> None:
        at_least_one(context=context)
        self.phrase: str | int = words or context or 16
        self.n, self.position, self.class_specific = context, position, class_specific
        super().__init__(backbone, class_names, **base)
        if words:
            embedded = backbone.embed(backbone.tokenizer.ids(words)[:context])
            embedded = embedded.expand(len(class_names), -1, -1) if class_specific else embedded
            self.context = nn.Parameter(embedded.clone())
        else:
            self.context = self.random(*self.layout.context_shape, backbone.text_width)

    def bind(self) -> None:
        super().bind()
        self.layout = self.backbone.layout(
            self.class_names, self.phrase, context=self.n, position=self.position, class_specific=self.class_specific
        )

    def with_classes(self, class_names: Sequence[str], template: str | None = None) -> Tuner:
        if self.class_specific:
            raise SettingError(
                "these prompts were learned class by class (class_specific=True) and mean nothing for other classes; "
                "tune with class_specific=False to use them on novel classes"
            )
        return super().with_classes(class_names, template)

    def text_features(self, image: Tensor | None = None) -> Tensor:
        return unit(self.backbone.encode_text(self.layout.fill(self.context[None])))[0]


@tuners.register("kgcoop")
class KgCoOp(CoOp):
    """CoOp that starts from words and adds a term on the text features.

    Args:
        words: The context starts from their embeddings.
        pull: The term: "knowledge" (the published method) or "orthogonality" (the released TCPT code).
        weight: Weight of that term; 8 for knowledge and 0.1 for orthogonality, unless given.
        **coop: Options of `CoOp`.
    """

    template_table = "kgcoop"

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        *,
        words: str | None = "a photo of a",
        pull: str = "knowledge",
        weight: float | None = None,
        **coop: Any,
    ) -> None:
        if pull not in PULLS:
            raise unknown("pull", pull, PULLS)
        self.pull, self.weight = pull, PULLS[pull] if weight is None else weight
        super().__init__(backbone, class_names, words=words, **coop)

    def terms(self, outputs: Outputs) -> dict[str, Tensor]:
        if self.pull == "knowledge":
            term = 1 - (outputs.text * outputs.frozen_text).sum(dim=-1).mean()
        else:
            term = mean_similarity(outputs.text)
        return {self.pull: self.weight * term}


def mean_similarity(features: Tensor) -> Tensor:
    """Mean |cosine| between different rows of [n, D]; 0 if there is only one."""
    n = len(features)
    cosines = (features @ features.T).abs()
    return (cosines.sum() - cosines.diagonal().sum()) / max(1, n * (n - 1))


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
