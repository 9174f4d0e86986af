"""KgCoOp: CoOp pulled towards the hand-written prompts (Yao et al., Visual-Language Prompt Tuning …, CVPR 2023).

    L = CE + 8 (1 - mean_c cos(t_c, u_c))        u_c the untuned text feature of class c

The released TCPT code trains something else under this name: no pull towards u, but 0.1 times the mean |cosine| between
the features of different classes (`pull="orthogonality"`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from calprompt.clip.backbone import Backbone
from calprompt.outputs import Outputs
from calprompt.registry import unknown
from calprompt.tuners.base import tuners
from calprompt.tuners.coop import CoOp

WEIGHTS = {"knowledge": 8.0, "orthogonality": 0.1}


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
        if pull not in WEIGHTS:
            raise unknown("pull", pull, WEIGHTS)
        self.pull, self.weight = pull, WEIGHTS[pull] if weight is None else weight
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
