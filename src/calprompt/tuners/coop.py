"""CoOp: context vectors learned in place of a prompt's words (Zhou et al., Learning to Prompt for VLMs, IJCV 2022).

[start] v1 … vn  name . [end]          v1 … vn shared by all classes, or different for each class
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from calprompt.clip.backbone import Backbone, unit
from calprompt.errors import SettingError
from calprompt.tuners.base import Tuner, at_least_one, tuners


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
