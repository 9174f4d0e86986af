"""PromptSRC: prompts in both towers that regulate themselves (Khattak et al., Self-regulating Prompts, ICCV 2023).

    L = CE + 25 mean|t - u| + 10 mean|f - f⁰| + mean_i KL(softmax z⁰_i ‖ softmax z_i) / C

u are untuned text features, each the normalised mean over many templates; f⁰ the untuned features of the same view of
the image; z⁰ = s f⁰ u'. The prompts in the end are the Gaussian-weighted mean of those after every epoch,

    θ = Σ_e w_e θ_e,      w_e ∝ exp(-(e - mean)² / (2 std²)),

over prompts only. Text and visual prompts are independent, in the first blocks of their towers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from calprompt.class_names import fill_template
from calprompt.clip.backbone import Backbone, unit
from calprompt.clip.open_clip_files import imagenet_templates
from calprompt.clip.prompts import VisualPrompts
from calprompt.errors import SettingError
from calprompt.outputs import Outputs
from calprompt.tuners.base import Tuner, at_least_one, tuners
from calprompt.tuners.maple import prompt_depth

TEACHERS = (60, 80)  # templates


@tuners.register("promptsrc")
class PromptSRC(Tuner):
    """Learns text and visual prompts under three consistency terms, and averages them over the epochs.

    Args:
        context: How many vectors each block of the text tower gets.
        visual: How many vectors each block of the image tower gets.
        words: The vectors at the input of the text tower start from their embeddings; at random if None.
        depth: How many blocks of the text tower get prompts, the first one at the input; 9, or all of a shallower
            tower, unless given.
        visual_depth: The same of the image tower.
        text_weight: Weight of the consistency of text features.
        image_weight: Weight of the consistency of image features.
        logit_weight: Weight of the consistency of logits.
        teacher: How many templates the untuned text features are made of: the published 60, or the 80 of the TCPT and
            DAC code.
        average: Mean and standard deviation, in epochs, of the weights of the averaging. "auto" is three quarters of
            the epochs and 1, which for 20 epochs are the published 15 and 1; None keeps the last prompts.
        **base: Options of `Tuner`.
    """

    needs_pixels = True
    uses_frozen_images = True

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        *,
        context: int = 4,
        visual: int = 4,
        words: str | None = "a photo of a",
        depth: int | None = None,
        visual_depth: int | None = None,
        text_weight: float = 25.0,
        image_weight: float = 10.0,
        logit_weight: float = 1.0,
        teacher: int = 60,
        average: Sequence[float] | str | None = "auto",
        **base: Any,
    ) -> None:
        at_least_one(context=context, visual=visual)
        if teacher not in TEACHERS:
            raise SettingError(f"must be 60 or 80 (templates), got {teacher!r}", parameter="teacher")
        if average not in (None, "auto") and (isinstance(average, str) or len(average) != 2 or average[1] <= 0):
            raise SettingError(
                "must be the mean and the standard deviation in epochs, such as (15, 1), 'auto' or None; "
                f"got {average!r}",
                parameter="average",
            )
        self.n, self.phrase, self.teacher_templates = context, words if words else context, imagenet_templates(teacher)
        self.text_weight, self.image_weight, self.logit_weight = text_weight, image_weight, logit_weight
        self.average = average
        self.averaged: dict[str, Tensor] = {}
        super().__init__(backbone, class_names, **base)
        depth = prompt_depth(depth, "the text tower", backbone.text_depth)
        visual_depth = prompt_depth(visual_depth, "the image tower", backbone.image_depth, "visual_depth")
        W, W_image = backbone.text_width, backbone.image_width
        self.context = self.initial_context(words, context, context)
        self.deep = nn.ParameterList([self.random(context, W) for _ in range(depth - 1)])
        self.visual = self.random(visual, W_image)
        self.deep_visual = nn.ParameterList([self.random(visual, W_image) for _ in range(visual_depth - 1)])

    def bind(self) -> None:
        super().bind()
        self.layout = self.backbone.layout(self.class_names, self.phrase, context=self.n)
        self._teacher: Tensor | None = None

    @property
    def teacher_text(self) -> Tensor:
        """Unit text features [C, D] of the untuned model under many templates, computed when training needs them."""
        if self._teacher is None:
            sentences = [
                [fill_template(template, name) for name in self.class_names] for template in self.teacher_templates
            ]
            raw = [self.backbone.encode_strings(texts, warn=False) for texts in sentences]
            self._teacher = unit(torch.stack(raw).mean(dim=0))
        return self._teacher

    def text_features(self, image: Tensor | None = None) -> Tensor:
        return unit(self.backbone.encode_text(self.layout.fill(self.context, list(self.deep)))[0])

    def image_features(self, images: Tensor) -> Tensor:
        return unit(self.backbone.encode_image(images, VisualPrompts(self.visual, list(self.deep_visual))))

    def terms(self, outputs: Outputs) -> dict[str, Tensor]:
        frozen_image = outputs.frozen_image()
        teacher = self.logits(frozen_image, self.teacher_text).log_softmax(dim=-1)
        student = outputs.logits.log_softmax(dim=-1)
        return {
            "text_consistency": self.text_weight * (outputs.text - self.teacher_text).abs().mean(),
            "image_consistency": self.image_weight * (outputs.image - frozen_image).abs().mean(),
            "logit_consistency": self.logit_weight * (teacher.exp() * (teacher - student)).mean(),
        }

    @torch.no_grad()
    def end_epoch(self, epoch: int, epochs: int) -> None:
        """Add this epoch's prompts to the average, and replace them by the average after the last epoch."""
        if self.average is None:
            return
        mean, deviation = (0.75 * epochs, 1.0) if isinstance(self.average, str) else self.average
        weight = gaussian_weights(epochs, mean, deviation)[epoch - 1]
        for name, prompts in self.named_parameters():
            share = weight.to(prompts) * prompts
            self.averaged[name] = self.averaged[name].to(share) + share if name in self.averaged else share
            if epoch == epochs:
                prompts.copy_(self.averaged[name])

    def training_state(self) -> dict[str, Tensor]:
        return dict(self.averaged)

    def load_training_state(self, state: dict[str, Tensor]) -> None:
        self.averaged = dict(state)


def gaussian_weights(epochs: int, mean: float, std: float) -> Tensor:
    """Weights of the epochs 1 … E, float64; they add up to 1.

    >>> gaussian_weights(20, 15, 1)[12:17].round(decimals=4).tolist()
    [0.054, 0.242, 0.3989, 0.242, 0.054]
    """
    exponents = -((torch.arange(1, epochs + 1, dtype=torch.float64) - mean) ** 2) / (2 * std**2)
    return exponents.softmax(dim=0)
