"""The calibrator that changes nothing, which others are compared with."""

from __future__ import annotations

from torch import Tensor

from calprompt.calibrators import Calibrator, StoredLogits


class Uncalibrated(Calibrator):
    """Logits as they are, in the precision they were stored in."""

    keeps_argmax = True
    novel = True

    def apply(self, record: StoredLogits) -> Tensor:
        return record.logits
