"""What a tuner is: learned prompts over a frozen backbone and a list of classes.

    images ──(backbone)── unit image features ─┐
                                               ├─ scaled cosines = logits ── Outputs ── losses
    prompts ─(backbone)── unit text features ──┘

A tuner knows its prompts and its own terms of the objective; nothing of data, optimisers or logging.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from calprompt.clip import Backbone, unit
from calprompt.errors import CalpromptError
from calprompt.outputs import Outputs
from calprompt.registry import Registry, unknown

tuners: Registry[type[Tuner]] = Registry("tuner")


class Tuner(nn.Module, ABC):
    """Base of all tuners: text prompts over frozen image features, unless a subclass says otherwise.

    Its parameters are the prompts and nothing else; the backbone is only referred to.

    template  the sentence of the untuned model, to which losses compare
    """

    sees_pixels: ClassVar[bool] = False  # True: visual prompts, the image tower runs at every step

    def __init__(
        self, backbone: Backbone, class_names: Sequence[str], *, template: str = "a photo of a {}.", seed: int = 0
    ) -> None:
        super().__init__()
        if len(set(class_names)) != len(class_names):
            repeated = sorted({name for name in class_names if list(class_names).count(name) > 1})
            raise CalpromptError(f"class names must differ, and these appear twice: {', '.join(repeated)}")
        if self.sees_pixels:
            backbone.require_vit(f"the tuner {type(self).__name__}")
        self._backbone = (backbone,)  # in a tuple, so that it is no submodule
        self.template = template
        self.generator = torch.Generator().manual_seed(seed)
        self.class_names = tuple(class_names)
        self.bind()

    @property
    def backbone(self) -> Backbone:
        return self._backbone[0]

    def bind(self) -> None:
        """Compute what depends on the class list only: frozen features here, prompt layouts in subclasses."""
        self.frozen_text = self.backbone.zero_shot(self.class_names, self.template)  # [C, D]

    def with_classes(self, class_names: Sequence[str], template: str | None = None) -> Tuner:
        """The same prompts (shared, not copied) for other classes, such as novel ones."""
        other = copy.copy(self)
        other.template = self.template if template is None else template
        other.class_names = tuple(class_names)
        other.bind()
        return other

    def random(self, *shape: int, std: float = 0.02) -> nn.Parameter:
        """A learnable tensor drawn from N(0, std^2) with the tuner's own generator."""
        drawn = torch.empty(shape, dtype=self.backbone.prompt_dtype).normal_(0, std, generator=self.generator)
        return nn.Parameter(drawn.to(self.backbone.device))

    @abstractmethod
    def text_features(self) -> Tensor:
        """Unit text features of the classes under the tuned prompts, [C, D]."""

    def image_features(self, images: Tensor) -> Tensor:
        """Unit image features [B, D]: of frozen features [B, D] here, of pixels where visual prompts are learned."""
        return unit(images.to(self.backbone.device, self.backbone.prompt_dtype))

    def forward(self, images: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Outputs:
        """The record of one training step on a batch."""
        image, text = self.image_features(images), self.text_features()
        return Outputs(
            logits=self.backbone.logit_scale * image @ text.T,
            labels=labels.to(image.device),
            image=image,
            text=text,
            frozen_text=self.frozen_text,
            logit_scale=self.backbone.logit_scale,
            frozen_image=lambda: image,
            terms=self.terms(image, text),
            generator=generator,
        )

    def terms(self, image: Tensor, text: Tensor) -> dict[str, Tensor]:
        """What the tuner itself adds to the objective, weighted."""
        return {}

    @torch.no_grad()
    def predict(self, batches: Iterable[Tensor]) -> Tensor:
        """Logits [n, C] of batches of images; the text side is computed once."""
        text = self.text_features()
        rows = [self.backbone.logit_scale * self.image_features(images) @ text.T for images in batches]
        if not rows:
            raise CalpromptError("there are no images to predict")
        return torch.cat(rows)

    def backward(self, loss: Tensor, outputs: Outputs) -> None:
        """Leave the gradient of a step on the parameters."""
        loss.backward()

    def end_epoch(self, epoch: int, epochs: int) -> None:
        """Called after each epoch, counted from 1."""


def create(name: str, backbone: Backbone, class_names: Sequence[str], **options: Any) -> Tuner:
    """A tuner by its registered name; an unknown name or option is answered with the known ones."""
    kind = tuners.get(name)
    known = {**signature(Tuner.__init__).parameters, **signature(kind.__init__).parameters}
    known = {k: v for k, v in known.items() if v.kind is v.KEYWORD_ONLY}
    for option in options:
        if option not in known:
            raise unknown(f"option of tuner {name!r}", option, known)
    return kind(backbone, class_names, **options)
