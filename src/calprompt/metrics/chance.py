"""What chance alone does: a model that is right exactly as often as it says shows gaps too, because images are few."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calprompt.metrics.binning import EqualWidth, equal_width_table, width_index
from calprompt.metrics.binomial import Z
from calprompt.metrics.inputs import Floats

DRAWS = 200  # of right and wrong, for a mean
BAND_DRAWS = 2000  # for the ends of a band
MANY = 500  # predictions in a bin, from which on their share is as good as normal


def chance_ece(confidence: Floats, draws: int = DRAWS) -> float:
    """The mean ECE of a model that is right exactly as often as it says, on as many images: ECE is never 0."""
    rng = np.random.default_rng(0)
    found = [
        equal_width_table(confidence, rng.random(len(confidence)) < confidence, n_bins=10).expected_gap
        for _ in range(draws)
    ]
    return float(np.mean(found))


def chance_band(confidence: Floats, *, n_bins: int = 10, draws: int = BAND_DRAWS) -> NDArray[np.float64]:
    """Between which accuracies 95 % of the bins of a perfectly calibrated model with these confidences lie."""
    rng = np.random.default_rng(0)
    confidence = np.asarray(confidence, dtype=np.float64)
    cell = width_index(confidence, n_bins, EqualWidth())
    band = np.full((n_bins, 2), np.nan)
    for number in np.unique(cell):
        own = confidence[cell == number]
        if len(own) > MANY:
            spread = Z * np.sqrt((own * (1 - own)).sum()) / len(own)
            band[number] = own.mean() - spread, own.mean() + spread
        else:
            band[number] = np.quantile((rng.random((draws, len(own))) < own).mean(axis=1), (0.025, 0.975))
    return band.clip(0, 1)
