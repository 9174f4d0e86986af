"""Learners on image features that leave the text as it is.

    clip-adapter    v' = unit(ρ A(v) + (1 - ρ) v)                 A = ReLU W₂ ReLU W₁      Gao et al., IJCV 2024
    tip-adapter     + α Σ_i exp(-β (1 - v·k_i)) onehot(y_i)       k_i the training images  Zhang et al., ECCV 2022
    tip-adapter-f   the same, and the keys k_i are learned from there

Logits are scale · v · t_c with what each adds. A class that is added by name has no key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from calprompt.clip.backbone import Backbone, unit
from calprompt.errors import SettingError
from calprompt.tuners.base import Tuner, at_least_one, tuners


class Adapter(Tuner):
    """Base of the adapters: the text features are those of zero-shot CLIP."""

    own_logits = True

    def text_features(self, image: Tensor | None = None) -> Tensor:
        return self.frozen_text


@tuners.register("clip-adapter")
class CLIPAdapter(Adapter):
    """A bottleneck of two layers on the image features, blended with them.

    Without biases a multiple of v gives the same multiple, so that unit features say all there is.

    Args:
        ratio: ρ, how much of the adapted features is taken.
        reduction: How many times narrower the bottleneck is.
        **base: Options of `Tuner`.
    """

    schedule = (100, 0.02)

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        *,
        ratio: float = 0.2,
        reduction: int = 4,
        **base: Any,
    ) -> None:
        if not 0 <= ratio <= 1:
            raise SettingError(f"must be between 0 and 1, got {ratio}", parameter="ratio")
        at_least_one(reduction=reduction)
        super().__init__(backbone, class_names, **base)
        self.ratio, D = ratio, backbone.embed_dim
        narrow = max(1, D // reduction)
        self.down, self.up = (self.linear(*shape).weight for shape in ((D, narrow), (narrow, D)))

    def logits(self, image: Tensor, text: Tensor) -> Tensor:
        adapted = ((image @ self.down.T).relu() @ self.up.T).relu()
        return super().logits(unit(self.ratio * adapted + (1 - self.ratio) * image), text)


@tuners.register("tip-adapter")
class TipAdapter(Adapter):
    """A cache of the training images, which vote for their classes; nothing is trained.

    Args:
        alpha: How much the votes count.
        beta: How fast they fall with the distance.
        **base: Options of `Tuner`.
    """

    keys: Tensor
    labels: Tensor
    learns_by_class = True
    trains_keys: ClassVar[bool] = False
    choices: ClassVar[Mapping[str, tuple[float, ...]]] = {"alpha": (0.3, 1.0, 3.0), "beta": (1.0, 5.5, 20.0)}

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        *,
        alpha: float = 1.0,
        beta: float = 5.5,
        **base: Any,
    ) -> None:
        super().__init__(backbone, class_names, **base)
        self.alpha, self.beta = alpha, beta
        self._keep(self.frozen_text[:0], torch.zeros(0, dtype=torch.int64))

    def _keep(self, keys: Tensor, labels: Tensor) -> None:
        keys = keys.detach().clone().to(self.backbone.device, self.backbone.prompt_dtype)
        if self.trains_keys:
            self.keys = nn.Parameter(keys)
        else:
            self.register_buffer("keys", keys)
        self.register_buffer("labels", labels.detach().clone().to(self.backbone.device))

    @torch.no_grad()
    def begin(self, images: Tensor, labels: Tensor, weights: Mapping[str, float]) -> bool:
        self._keep(unit(unit(images.to(self.backbone.prompt_dtype)).mean(dim=0)), labels)  # the mean of the views
        return not self.trains_keys

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *rest: Any) -> None:
        """There are as many keys as the training had images."""
        keys, labels = state_dict.get(f"{prefix}keys"), state_dict.get(f"{prefix}labels")
        if keys is not None and labels is not None and keys.shape != self.keys.shape:
            self._keep(keys, labels)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def logits(self, image: Tensor, text: Tensor) -> Tensor:
        classes = torch.eye(len(self.tuned_classes), dtype=image.dtype, device=image.device)
        values = self.of_classes(classes).T[self.labels]  # [n, C]
        votes = torch.exp(-self.beta * (1 - image @ self.keys.T)) @ values
        return super().logits(image, text) + self.alpha * votes


@tuners.register("tip-adapter-f")
class TipAdapterF(TipAdapter):
    """Tip-Adapter whose keys are trained, starting from the training images; their labels stay.

    Args:
        alpha: How much the votes count.
        beta: How fast they fall with the distance.
        **base: Options of `Tuner`.
    """

    trains_keys = True
    choices: ClassVar[Mapping[str, tuple[float, ...]]] = {}
    schedule = (20, 0.02)
