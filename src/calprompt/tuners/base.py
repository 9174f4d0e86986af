"""What a tuner is: learned prompts, or learned weights, over a frozen backbone and a list of classes.

    images ──(backbone)── unit image features ─┐
                                               ├─ scaled cosines = logits ── Outputs ── losses
    prompts ─(backbone)── unit text features ──┘

A tuner knows what it learns and the terms it adds to the objective, and nothing about data, optimisers or logging.
Learners on features (`probes`, `adapters`) change the text features or the logits and leave the rest as it is.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from calprompt.class_names import check_class_names, normalized_name
from calprompt.clip.backbone import Backbone, unit
from calprompt.clip.prompts import PromptLayout
from calprompt.errors import SettingError
from calprompt.outputs import Outputs
from calprompt.registry import Registry, check_types, unknown

tuners: Registry[type[Tuner]] = Registry("tuner")


class Tuner(nn.Module, ABC):
    """Base of all tuners: text prompts over frozen image features, unless a subclass overrides that.

    Its parameters and buffers are what it learns and nothing else; the backbone is not a submodule.

    Args:
        backbone: The frozen model.
        class_names: The classes to tell apart.
        template: The sentence of the untuned model, with which losses compare.
        seed: Seed of everything that is drawn at random.

    Attributes:
        learns: Whether there is anything to train.
        needs_pixels: Whether it learns visual prompts, so that the image tower runs at every step.
        uses_frozen_images: Whether its terms compare with frozen features of the pixels it sees.
        text_depends_on_image: Whether every image has text features of its own.
        learns_by_class: Whether a class that is added by name has nothing of what was learned.
        own_logits: Whether `logits` is more than scaled cosines with one set of text features.
        schedule: Epochs and learning rate that `fit` trains it with; None: those of prompts.
        choices: Options that `fit` chooses by cross-fitting, unless they are given: from name to values.
        template_table: Which of the published templates it takes where a dataset has several.
        fixed_options: Options of its base class that it sets itself.
        layout: Where the learned vectors stand in the prompts of the current classes.
        frozen_text: Text features [C, D] of the untuned model.
        tuned_classes: The classes that it learns from, where `class_names` may be others.
    """

    learns: ClassVar[bool] = True
    needs_pixels: ClassVar[bool] = False
    uses_frozen_images: ClassVar[bool] = False
    text_depends_on_image: ClassVar[bool] = False
    learns_by_class: ClassVar[bool] = False
    own_logits: ClassVar[bool] = False
    schedule: ClassVar[tuple[int, float] | None] = None
    choices: ClassVar[Mapping[str, tuple[float, ...]]] = {}
    template_table: ClassVar[str] = "coop"
    fixed_options: ClassVar[frozenset[str]] = frozenset()

    layout: PromptLayout

    def __init__(
        self, backbone: Backbone, class_names: Sequence[str], *, template: str = "a photo of a {}.", seed: int = 0
    ) -> None:
        super().__init__()
        if self.needs_pixels:
            backbone.require_vit(f"the tuner {type(self).__name__}")
        self._backbone = (backbone,)  # in a tuple, so that it does not become a submodule
        self.template, self.seed = template, seed
        self._generator = torch.Generator().manual_seed(seed)
        self.class_names = self.tuned_classes = check_class_names(class_names, allow_repeated=True)
        self.bind()

    @property
    def backbone(self) -> Backbone:
        """The frozen model."""
        return self._backbone[0]

    def bind(self) -> None:
        """Compute everything that depends only on the classes: frozen features here, prompt layouts in subclasses."""
        self.frozen_text = self.backbone.zero_shot(self.class_names, self.template)  # [C, D]

    def with_classes(self, class_names: Sequence[str], template: str | None = None) -> Tuner:
        """The same prompts (shared, not copied) for other classes, such as novel ones.

        Args:
            class_names: The other classes.
            template: The sentence of the untuned model for them; the same, unless given.

        Raises:
            SettingError: if the prompts mean nothing for other classes.
        """
        other = copy.copy(self)
        other.template = self.template if template is None else template
        other.class_names = check_class_names(class_names, allow_repeated=True)
        other.bind()
        return other

    def with_backbone(self, backbone: Backbone) -> Tuner:
        """The same prompts (shared, not copied) over another view of the same backbone."""
        other = copy.copy(self)
        other._backbone = (backbone,)
        return other

    def random(self, *shape: int, std: float = 0.02) -> nn.Parameter:
        """A learnable tensor drawn from N(0, std²) with the tuner's generator."""
        drawn = torch.empty(shape, dtype=self.backbone.prompt_dtype).normal_(0, std, generator=self._generator)
        return nn.Parameter(drawn.to(self.backbone.device))

    def linear(self, inputs: int, outputs: int) -> nn.Linear:
        """A learnable affine map, initialised as in torch, with the tuner's generator."""
        layer = nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=self.backbone.prompt_dtype)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.uniform_(-(inputs**-0.5), inputs**-0.5, generator=self._generator)
        return layer.to(self.backbone.device)

    def of_classes(self, learned: Tensor) -> Tensor:
        """Rows of something learned class by class, for the present classes: zeros where nothing was learned."""
        if self.class_names == self.tuned_classes:
            return learned
        places: dict[str, list[int]] = {}
        for row, name in enumerate(self.tuned_classes):
            places.setdefault(normalized_name(name), []).append(row)
        rows = [found.pop(0) if (found := places.get(normalized_name(name))) else -1 for name in self.class_names]
        padded = torch.cat([learned, learned.new_zeros(1, *learned.shape[1:])])
        return padded[torch.tensor(rows, device=learned.device)]

    def initial_context(self, words: str | None, count: int | None, *shape: int) -> nn.Parameter:
        """Context vectors to learn: the embeddings of the first `count` tokens of words, or drawn at random."""
        if words:
            return nn.Parameter(self.backbone.embed(self.backbone.tokenizer.ids(words)[:count]))
        return self.random(*shape, self.backbone.text_width)

    @abstractmethod
    def text_features(self, image: Tensor | None = None) -> Tensor:
        """Unit text features of the classes under the tuned prompts.

        Args:
            image: Unit image features [B, D]; used only by tuners whose text depends on the image.

        Returns:
            [C, D]; [B, C, D] if the text depends on the image and images are given.
        """

    def common_text_features(self, images: Tensor) -> Tensor:
        """One set of text features [C, D] for many images; an average where each image has its own."""
        return self.text_features()

    def image_features(self, images: Tensor) -> Tensor:
        """Unit image features [B, D] from frozen features [B, D], or from pixels if visual prompts are learned."""
        D = self.backbone.embed_dim
        if not isinstance(images, Tensor) or not images.is_floating_point() or images.shape[1:] != (D,):
            got = f"{images.dtype} {list(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
            raise SettingError(
                f"the tuner {type(self).__name__} takes frozen image features [n, {D}] in floating point, as "
                f"backbone.encode_image gives them; got {got}"
            )
        return unit(images.to(self.backbone.device, self.backbone.prompt_dtype))

    def logits(self, image: Tensor, text: Tensor) -> Tensor:
        """Scaled cosines, [B, C]."""
        cosines = image @ text.T if text.ndim == 2 else torch.einsum("bd,bcd->bc", image, text)
        return self.backbone.logit_scale * cosines

    def forward(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        frozen: Tensor | None = None,
        seed: int = 0,
    ) -> Outputs:
        """The outputs of one training step.

        Args:
            images: Pixels [B, 3, H, W] if the tuner needs them, else frozen image features [B, D].
            labels: Class indices [B].
            frozen: The frozen features of these pixels, if there are any already; computed when needed otherwise.
            seed: Seed of this step, for losses that draw at random.
        """
        image = self.image_features(images)
        text = self.text_features(image)
        return self.outputs(images, labels, image, text, self.logits(image, text), frozen, seed)

    def outputs(
        self,
        images: Tensor,
        labels: Tensor,
        image: Tensor,
        text: Tensor,
        logits: Tensor,
        frozen: Tensor | None,
        seed: int,
    ) -> Outputs:
        """The record for the losses, with the terms that the tuner adds to the objective."""

        @cache
        @torch.no_grad()
        def frozen_image() -> Tensor:
            if not self.needs_pixels:
                return image
            return unit((self.backbone.encode_image(images) if frozen is None else frozen).to(image))

        record = Outputs(
            logits=logits,
            labels=labels.to(logits.device),
            image=image,
            text=text,
            frozen_text=self.frozen_text,
            logit_scale=self.backbone.logit_scale,
            frozen_image=frozen_image,
            seed=seed,
        )
        return replace(record, terms=self.terms(record))

    def check_objective(self, weights: Mapping[str, float]) -> None:
        """Check that the tuner can be trained with a loss.

        Args:
            weights: Weights of the terms of the loss, by name.

        Raises:
            SettingError: if it cannot.
        """

    def begin(self, images: Tensor, labels: Tensor, weights: Mapping[str, float]) -> bool:
        """Take in all training images before the first step; for tuners that learn from frozen features.

        Args:
            images: Frozen features [V, n, D] of V views.
            labels: Class indices [n].
            weights: Weights of the terms of the loss, by name.

        Returns:
            Whether nothing is left to learn step by step.
        """
        return False

    def terms(self, outputs: Outputs) -> dict[str, Tensor]:
        """What the tuner adds to the objective, weighted, by name."""
        return {}

    @torch.no_grad()
    def predict(self, batches: Iterable[Tensor]) -> Tensor:
        """Logits [n, C] of batches of images; text features that do not depend on images are computed once.

        Raises:
            SettingError: if there are no images.
        """
        text = None if self.text_depends_on_image else self.text_features()
        rows = []
        for images in batches:
            image = self.image_features(images)
            rows.append(self.predict_features(image) if text is None else self.logits(image, text))
        if not rows:
            raise SettingError("there are no images to predict")
        return torch.cat(rows)

    @torch.no_grad()
    def predict_features(self, image: Tensor) -> Tensor:
        """Logits [n, C] of unit image features [n, D]."""
        return self.logits(image, self.text_features(image))

    def backward(self, loss: Tensor, outputs: Outputs, scale: Tensor | None = None) -> None:
        """Compute the gradients of a step: those of each of the `loss_parts`, combined.

        Args:
            loss: What is minimised.
            outputs: That it was computed from.
            scale: Keeps gradients within the range of float16 on their way through the towers.
        """
        parts, parameters = self.loss_parts(loss, outputs), list(self.parameters())
        if scale is not None:
            parts = tuple(part * scale for part in parts)
        gradients = [
            torch.autograd.grad(part, parameters, retain_graph=number < len(parts), allow_unused=True)
            for number, part in enumerate(parts, start=1)
        ]
        for parameter, *each in zip(parameters, *gradients, strict=True):
            if scale is not None:
                each = [None if gradient is None else gradient / scale for gradient in each]
            parameter.grad = self.combine_gradients(*each)

    def loss_parts(self, loss: Tensor, outputs: Outputs) -> tuple[Tensor, ...]:
        """What is differentiated by itself: the loss, or parts that it is the sum of."""
        return (loss,)

    def combine_gradients(self, *gradients: Tensor) -> Tensor:
        """The gradient of a parameter from those of the `loss_parts`."""
        return gradients[0]

    def end_epoch(self, epoch: int, epochs: int) -> None:
        """Called after each epoch, counted from 1."""

    def training_state(self) -> dict[str, Tensor]:
        """What training needs besides the prompts to continue where it stopped."""
        return {}

    def load_training_state(self, state: dict[str, Tensor]) -> None:
        """Continue from what `training_state` returned."""


@tuners.register("zero-shot")
class ZeroShot(Tuner):
    """The untuned model, as a tuner without parameters: one sentence for every class, nothing learned."""

    learns = False

    def text_features(self, image: Tensor | None = None) -> Tensor:
        return self.frozen_text


def create_tuner(
    name: str, backbone: Backbone, class_names: Sequence[str], *, allow_repeated: bool = False, **options: Any
) -> Tuner:
    """Create a tuner by its registered name.

    Args:
        name: Such as "coop"; `tuners.available()` lists them.
        backbone: The frozen model.
        class_names: The classes to tell apart.
        allow_repeated: Two classes may share a name, as two pairs of ImageNet's do.
        **options: Options of that tuner, see its class.

    Returns:
        The tuner with its initial prompts.

    Raises:
        UnknownNameError: if there is no such tuner or option.
        SettingError: if a class name is not usable.
    """
    kind = tuners.get(name)
    if not isinstance(backbone, Backbone):
        raise SettingError(f"must be what load_backbone returns, got {backbone!r}", parameter="backbone")
    check_class_names(class_names, allow_repeated=allow_repeated)
    check_options(name, options)
    return kind(backbone, class_names, **options)


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise for an option that a tuner does not have, or of another type."""
    kind = tuners.get(name)
    for option in options:
        if option not in option_names(kind):
            raise unknown(f"option of tuner {name!r}:", option, option_names(kind))
    for base in kind.__mro__:
        if "__init__" in vars(base) and issubclass(base, Tuner):
            check_types(f"option of tuner {name!r}:", vars(base)["__init__"], options)


def option_names(kind: type[Tuner]) -> list[str]:
    """Keyword options of a tuner and of the tuners it is derived from."""
    bases = [base for base in kind.__mro__ if issubclass(base, Tuner)]
    parameters = [p for base in bases for p in signature(base.__init__).parameters.values()]
    return sorted({p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - kind.fixed_options)


def at_least_one(**counts: int | None) -> None:
    """Raise `SettingError` for a count below 1; `None` stands for a default and passes."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise SettingError(f"must be at least 1, got {count}", parameter=name)
