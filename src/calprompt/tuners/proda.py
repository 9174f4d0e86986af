"""ProDA: a collection of prompts as a Gaussian of classifiers (Lu et al., Prompt Distribution Learning, CVPR 2022).

Every class has a Gaussian of text features, estimated from P prompts: mean μ_c and, with δ_cp = t_cp - μ_c, covariance
between classes Σ_p δ_cp δ_c'p / (P + 1), in every dimension. Training minimises an upper bound of the expected
cross-entropy,

    z_ic = s f_i·μ_c + ½ s² σ_ic        σ_ic = Σ_d f_id² Σ_p (δ_{y_i p d} - δ_{c p d})² / (P + 1)

plus 0.1 times the mean |cosine| between the prompts without a class name. A quarter of the prompts have the class name
in front, a quarter in the middle, half at the end. Each step takes a few of them, in turns of a random order;
prediction takes all, s f·μ_c with μ_c not normalised again. TCPT's margins are those of the logits in the
cross-entropy; its moments are those of the μ_c of the prompts drawn.

The public code tokenises names with their underscores but counts their tokens without (`keep_underscores=True`), which
splits such names one token early in front and middle prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from calprompt.clip.backbone import Backbone, unit
from calprompt.clip.prompts import PromptLayout
from calprompt.errors import SettingError
from calprompt.outputs import Outputs
from calprompt.tuners.base import Tuner, at_least_one, tuners
from calprompt.tuners.coop import mean_similarity


@tuners.register("proda")
class ProDA(Tuner):
    """Learns a collection of contexts.

    Args:
        prompts: How many contexts there are.
        prompt_batch: How many of them each step takes.
        context: Vectors per context.
        similarity: Weight of the term that keeps prompts apart.
        keep_underscores: Split class names where the public code does, see above.
        **base: Options of `Tuner`.
    """

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        *,
        prompts: int = 32,
        prompt_batch: int = 4,
        context: int = 16,
        similarity: float = 0.1,
        keep_underscores: bool = False,
        **base: Any,
    ) -> None:
        at_least_one(prompts=prompts, prompt_batch=prompt_batch, context=context)
        if prompts % prompt_batch:
            raise SettingError(f"must be a multiple of prompt_batch={prompt_batch}, got {prompts}", parameter="prompts")
        self.n, self.prompt_batch, self.similarity = context, prompt_batch, similarity
        self.keep_underscores = keep_underscores
        front, middle = prompts // 4, prompts // 2
        self.positions = ["front"] * front + ["middle"] * (middle - front) + ["end"] * (prompts - middle)
        self.steps = 0
        super().__init__(backbone, class_names, **base)
        self.context = self.random(prompts, context, backbone.text_width)
        self.nameless = backbone.layout([""], context)

    def bind(self) -> None:
        super().bind()
        self.layouts: dict[str, PromptLayout] = {
            position: self.backbone.layout(
                self.class_names, self.n, position=position, keep_underscores=self.keep_underscores
            )
            for position in ("end", "middle", "front")
        }
        self.layout = self.layouts["end"]

    def prompt_features(self, prompts: Sequence[int]) -> Tensor:
        """Unit features [P, C, D] of some prompts, those with the name at the end first, then middle, then front."""
        parts = []
        for position, layout in self.layouts.items():
            group = [p for p in prompts if self.positions[p] == position]
            if group:
                parts.append(self.backbone.encode_text(layout.fill(self.context[group])))
        return unit(torch.cat(parts))

    def text_features(self, image: Tensor | None = None) -> Tensor:
        """The mean of the unit features of all prompts, [C, D], a little shorter than 1."""
        return self.prompt_features(range(len(self.positions))).mean(dim=0)

    def draw(self) -> list[int]:
        """The prompts of the next step."""
        turns = len(self.positions) // self.prompt_batch
        turn, self.steps = self.steps % turns, self.steps + 1
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + (self.steps - 1) // turns)
        order = torch.randperm(len(self.positions), generator=generator).tolist()
        return order[turn * self.prompt_batch : (turn + 1) * self.prompt_batch]

    def forward(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        frozen: Tensor | None = None,
        seed: int = 0,
    ) -> Outputs:
        image, labels = self.image_features(images), labels.to(self.context.device)
        features = self.prompt_features(self.draw())
        mean = features.mean(dim=0)
        bound = 0.5 * self.backbone.logit_scale**2 * spread(image, labels, features - mean)
        logits = self.logits(image, mean)  # without the bound, which depends on the labels
        record = self.outputs(images, labels, image, mean, logits + bound, frozen, seed)
        return replace(record, predicted=logits.detach())

    def terms(self, outputs: Outputs) -> dict[str, Tensor]:
        alone = unit(self.backbone.encode_text(self.nameless.fill(self.context))[:, 0])  # [prompts, D]
        return {"prompt_similarity": self.similarity * mean_similarity(alone)}

    def training_state(self) -> dict[str, Tensor]:
        return {"steps": torch.tensor(self.steps)}

    def load_training_state(self, state: dict[str, Tensor]) -> None:
        self.steps = int(state["steps"]) if state else 0


def spread(image: Tensor, labels: Tensor, deviations: Tensor) -> Tensor:
    """σ [B, C] of images [B, D] from the prompts' deviations [P, C, D], without a [D, C, C] covariance."""
    squares = image.square()  # [B, D]
    at_label = deviations[:, labels]  # [P, B, D]
    total = deviations.square().sum(dim=0)  # [C, D]
    variance = squares @ total.T  # [B, C]
    cross = torch.einsum("bd,pbd,pcd->bc", squares, at_label, deviations)
    return (variance.gather(1, labels[:, None]) + variance - 2 * cross) / (len(deviations) + 1)
