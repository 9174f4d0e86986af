"""Classes that are added by name after a model was fitted: what becomes of its calibrator and of its sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from calprompt.calibrators import Calibrator, Chain, DistanceAware
from calprompt.errors import SettingError
from calprompt.promises import SetRule

ADDED = "classes were added after it was fitted"


def adjusted(calibrator: Calibrator | None, adjust: str | None) -> Calibrator | None:
    """The calibrator for classes that were added: the fitted one, and after it DAC if that is wanted."""
    if adjust is None:
        return calibrator
    if adjust != "dac":
        raise SettingError(f"must be 'dac' or None, got {adjust!r}", parameter="adjust")
    if calibrator is None:
        return DistanceAware()
    return Chain([*(calibrator.steps if isinstance(calibrator, Chain) else [calibrator]), DistanceAware()])


def extended_sets(rules: Sequence[SetRule], classes: int, keep: bool) -> tuple[SetRule, ...]:
    """Quantiles per class mean nothing for classes that it was not fitted on: these are in every set."""

    def extended(rule: SetRule) -> SetRule:
        kept = len(rule.quantiles) if keep else 0
        return replace(
            rule,
            quantiles=(*rule.quantiles[:kept], *[np.inf] * (classes - kept)),
            images=(*rule.images[:kept], *[0] * (classes - kept)),
        )

    return tuple(extended(rule) if rule.per_class else rule for rule in rules)
