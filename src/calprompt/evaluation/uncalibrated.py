"""The calibrator that changes nothing, which others are compared with."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from calprompt.calibrators import Calibrator, StoredLogits


class Uncalibrated(Calibrator):
    """Logits as they are, in the precision they were stored in."""

    keeps_argmax = True
    novel = True

    def apply(self, record: StoredLogits) -> Tensor:
        return record.logits

    def export(self, record: StoredLogits) -> list[dict[str, Any]]:
        return []
