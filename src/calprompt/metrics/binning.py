"""The one binning behind every calibration metric: confidences into bins, bins into a reliability table.

    equal width, closed="right"                           equal mass (here 3 bins of 2)

    accuracy │            ▄                               ▏• •▕ ▏•    •▕ ▏•   •▕
             │      ▄     █   gap_b = |acc_b − conf_b|    0                    1
             └──┬─────┬─────┬──
        0 ∈ (first]  ( lo, hi ]  ∋ 1

By default every sample is in exactly one bin. `EqualWidth` defines where edges are and to which bin they belong, in
which public evaluators differ. Equal-mass bins never separate samples of equal confidence.

            default                     tcpt                            dac
softmax     float64                     the precision of the logits     float64
ECE bins    (lo, hi], edges k/n,        (lo, hi], float32 edges,        [lo, hi), linspace edges, confidence 1 is in
            0 is in the first           confidence 0 is in no bin       the weight of the last bin, not in its means
MCE bins    the same                    [lo, hi), linspace edges,       [lo, hi), linspace edges,
                                        1 is in the last                1 is in the last
ACE bins    by mid-rank                 at linear quantiles             at linear quantiles

Both public evaluators report as "MCE" what is `weighted_mce` here, and both use scikit-learn for ACE, whose quantiles
depend on its version: `dataclasses.replace(TCPT, ace="averaged_inverted_cdf")` is theirs under scikit-learn 1.9.
Metrics that they do not have take the bins of `ece` (class-wise ECE) or of `mce` (textbook MCE); PIECE takes those of
`mce` for confidences and those of `ace` for distances, as both do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

import numpy as np

from calprompt.errors import SettingError
from calprompt.metrics.inputs import ArrayLike, Floats, Ints, Softmax, checked_outcomes
from calprompt.registry import Registry, unknown


@dataclass(frozen=True, eq=False)
class BinTable:
    """Bins and what is in them: the reliability diagram as data.

    Attributes:
        lower: Lower edges.
        upper: Upper edges.
        count: Number of samples that weigh in each bin.
        confidence: Mean confidence of each bin; NaN if it has no samples.
        accuracy: Fraction correct in each bin; NaN if it has no samples.
        total: N, the number of all samples.
    """

    lower: Floats
    upper: Floats
    count: Ints
    confidence: Floats
    accuracy: Floats
    total: int

    @property
    def gap(self) -> Floats:
        """|acc_b − conf_b|, and 0 for bins without samples."""
        return np.nan_to_num(np.abs(self.accuracy - self.confidence))

    @property
    def expected_gap(self) -> float:
        """Σ_b n_b/N · gap_b."""
        return float((self.count / self.total * self.gap).sum())

    @property
    def maximum_gap(self) -> float:
        """max_b gap_b over bins that have samples."""
        return float(self.gap.max())

    @property
    def weighted_maximum_gap(self) -> float:
        """max_b n_b/N · gap_b."""
        return float((self.count / self.total * self.gap).max())

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per bin, ready for JSON; the means of an empty bin are None."""
        columns = {
            "lower": self.lower,
            "upper": self.upper,
            "count": self.count,
            "confidence": self.confidence,
            "accuracy": self.accuracy,
            "gap": np.abs(self.accuracy - self.confidence),
        }
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [{k: None if v != v else v for k, v in zip(columns, row, strict=True)} for row in values]


Quantile = Literal["midrank", "linear", "averaged_inverted_cdf"]
MAX_BINS = 10_000
MIN_QUANTILE_STEP = 1e-8  # quantile edges nearer than this to the one before are dropped, as scikit-learn does


@dataclass(frozen=True)
class EqualWidth:
    """Where equal-width bins have their edges, and to which bin an edge belongs.

    Attributes:
        closed: "right" for (lo, hi], "left" for [lo, hi).
        edges: "fraction" is k/n rounded to the nearest float64, so that a typed 0.3 is an edge of ten bins; "linspace"
            is k·(1/n) as in `numpy.linspace` (0.30000000000000004); "float32" is `torch.linspace` in single precision.
        outermost: Treatment of the value that half-open intervals leave out: 0 if closed right, 1 if closed left.
            "keep" puts it into its end bin; "drop" into none, though it still counts in N; "weigh" into the weight of
            its end bin but not into that bin's means.
    """

    closed: Literal["right", "left"] = "right"
    edges: Literal["fraction", "linspace", "float32"] = "fraction"
    outermost: Literal["keep", "drop", "weigh"] = "keep"

    def __post_init__(self) -> None:
        for field, kind in get_type_hints(EqualWidth).items():
            if getattr(self, field) not in get_args(kind):
                raise unknown(f"value of {field}", str(getattr(self, field)), get_args(kind))


def equal_width_table(
    confidence: ArrayLike, correct: ArrayLike, *, n_bins: int = 10, bins: EqualWidth | None = None
) -> BinTable:
    """Table of equal-width bins.

    Args:
        confidence: Confidence of each sample, in [0, 1].
        correct: Whether each prediction is correct.
        n_bins: Number of bins.
        bins: Bin edges; by default (lo, hi] with edges at k/n.

    >>> table = equal_width_table([0.0, 0.5, 0.6, 1.0], [0, 1, 0, 1], n_bins=2)
    >>> table.count.tolist(), table.accuracy.tolist(), table.confidence.tolist()
    ([2, 2], [0.5, 0.5], [0.25, 0.8])
    """
    confidence, correct = checked_outcomes(confidence, correct)
    return width_table(confidence, correct, check_n_bins(n_bins), bins or EqualWidth())


def equal_mass_table(
    confidence: ArrayLike, correct: ArrayLike, *, n_bins: int = 10, quantile: Quantile = "midrank"
) -> BinTable:
    """Table of bins with (nearly) equal numbers of samples; `lower` and `upper` are the extremes of the members.

    "midrank" puts all samples of one confidence into the bin in which the middle of their ranks falls: with L samples
    below and E equal, bin ⌊n_bins·(L + E/2)/N⌋ in whole numbers. So equal confidences are never separated, the order of
    the samples is irrelevant, and repeating each sample changes nothing. Without ties the counts differ by at most 1.
    "linear" and "averaged_inverted_cdf" cut at quantiles of that definition, see `quantile_edges`.

    Args:
        confidence: Confidence of each sample, in [0, 1].
        correct: Whether each prediction is correct.
        n_bins: Number of bins.
        quantile: Rule that assigns samples to bins.

    >>> equal_mass_table([0.2, 0.9, 0.9, 0.9], [0, 1, 1, 0], n_bins=2).rows()[1]["count"]
    3
    """
    confidence, correct = checked_outcomes(confidence, correct)
    return mass_table(confidence, correct, check_n_bins(n_bins), quantile)


def width_edges(n_bins: int, kind: str = "fraction") -> Floats:
    """The n_bins + 1 edges of equal-width bins.

    >>> width_edges(10)[3], width_edges(10, "linspace")[3]
    (np.float64(0.3), np.float64(0.30000000000000004))
    """
    if kind == "float32":
        import torch

        return np.asarray(torch.linspace(0, 1, n_bins + 1, dtype=torch.float32).double().numpy())
    return np.linspace(0, 1, n_bins + 1) if kind == "linspace" else np.arange(n_bins + 1) / n_bins


def width_index(confidence: Floats, n_bins: int, bins: EqualWidth) -> Ints:
    """The equal-width bin of each sample; both ends belong to the bin next to them.

    With edges at k/n, confidences and edges are compared in float32: 0.8 lies on the edge 0.8 whether it was computed
    in single or in double precision.

    >>> width_index(np.array([0.8, np.float32(0.8)], dtype=np.float64), 10, EqualWidth())
    array([7, 7])
    """
    edges = width_edges(n_bins, bins.edges)
    side: Literal["left", "right"] = "left" if bins.closed == "right" else "right"
    if bins.edges == "fraction":
        return np.searchsorted(edges[1:-1].astype(np.float32), confidence.astype(np.float32), side=side).astype(
            np.int64
        )
    return np.searchsorted(edges[1:-1], confidence, side=side).astype(np.int64)


def quantile_edges(values: Floats, n_bins: int, quantile: Literal["linear", "averaged_inverted_cdf"]) -> Floats:
    """Edges at the k/n_bins quantiles, without those less than 1e-8 above the one before; ±∞ if all values are equal.

    These are scikit-learn's quantile bins: "linear" its only definition up to 1.6, "averaged_inverted_cdf" the default
    from 1.9 on (scikit-learn draws 200000 of more samples than that at random; here all are used).
    """
    if values.min() == values.max():
        return np.array([-np.inf, np.inf])
    edges = np.percentile(values, np.linspace(0, 100, n_bins + 1), method=quantile)
    return np.asarray(edges[np.ediff1d(edges, to_begin=np.inf) > MIN_QUANTILE_STEP])


def mass_index(values: Floats, n_bins: int, quantile: Quantile = "midrank") -> Ints:
    """The equal-mass bin of each sample, see `equal_mass_table`."""
    if quantile not in get_args(Quantile):
        raise unknown("quantile definition", quantile, get_args(Quantile))
    if quantile != "midrank":
        inner = quantile_edges(values, n_bins, quantile)[1:-1]
        return np.searchsorted(inner, values, side="right").astype(np.int64)
    _, which, equal = np.unique(values, return_inverse=True, return_counts=True)
    twice_middle = 2 * np.cumsum(equal) - equal
    return np.asarray((n_bins * twice_middle // (2 * len(values)))[which], dtype=np.int64)


def width_table(confidence: Floats, correct: Floats, n_bins: int, bins: EqualWidth) -> BinTable:
    """`equal_width_table` of vectors that were checked already."""
    edges = width_edges(n_bins, bins.edges)
    index, counted, averaged = width_members(confidence, n_bins, bins)
    return _table(index, confidence, correct, counted, averaged, edges[:-1], edges[1:])


def width_members(confidence: Floats, n_bins: int, bins: EqualWidth) -> tuple[Ints, Floats, Floats]:
    """The bin of each sample, and whether (1 or 0) it counts in that bin's weight and in its means."""
    index = width_index(confidence, n_bins, bins)
    counted = averaged = np.ones(len(confidence))
    if bins.outermost != "keep":
        averaged = (confidence > 0 if bins.closed == "right" else confidence < 1).astype(np.float64)
        counted = averaged if bins.outermost == "drop" else counted
    return index, counted, averaged


def mass_table(confidence: Floats, correct: Floats, n_bins: int, quantile: Quantile) -> BinTable:
    """`equal_mass_table` of vectors that were checked already."""
    index = mass_index(confidence, n_bins, quantile)
    lower, upper = np.full(n_bins, np.inf), np.full(n_bins, -np.inf)
    np.minimum.at(lower, index, confidence)
    np.maximum.at(upper, index, confidence)
    lower[np.isinf(lower)] = upper[np.isinf(upper)] = np.nan
    ones = np.ones(len(confidence))
    return _table(index, confidence, correct, ones, ones, lower, upper)


def cell_table(cell: Ints, n_cells: int, confidence: Floats, correct: Floats) -> BinTable:
    """Table of samples that are assigned to cells 0..n_cells−1, which are not intervals of confidence."""
    ones, no_edges = np.ones(len(confidence)), np.full(n_cells, np.nan)
    return _table(cell, confidence, correct, ones, ones, no_edges, no_edges)


def check_n_bins(n_bins: int, name: str = "n_bins") -> int:
    """Check a number of bins: a whole number from 1 to 10,000."""
    if isinstance(n_bins, bool) or not isinstance(n_bins, (int, np.integer)) or n_bins < 1:
        raise SettingError(f"must be a whole number of at least 1, got {n_bins!r}", parameter=name)
    if n_bins > MAX_BINS:
        raise SettingError(f"must be at most {MAX_BINS:,}, got {n_bins:,}", parameter=name)
    return int(n_bins)


def _table(
    index: Ints, confidence: Floats, correct: Floats, counted: Floats, averaged: Floats, lower: Floats, upper: Floats
) -> BinTable:
    def per_bin(weights: Floats) -> Floats:
        return np.bincount(index, weights, minlength=len(lower)).astype(np.float64)

    members = per_bin(averaged)
    mean_confidence, accuracy = (
        np.divide(per_bin(averaged * x), members, out=np.full(len(lower), np.nan), where=members > 0)
        for x in (confidence, correct)
    )
    count = per_bin(counted).astype(np.int64)
    return BinTable(lower, upper, count, mean_confidence, accuracy, len(index))


_PRINCIPLED = EqualWidth()
_LEFT_CLOSED = EqualWidth(closed="left", edges="linspace")


@dataclass(frozen=True)
class Convention:
    """The choices of an evaluator that its tables do not mention.

    Attributes:
        ece: Bins of ECE and class-wise ECE.
        mce: Bins of MCE and of weighted MCE.
        ace: Rule by which ACE assigns samples to bins.
        softmax: Precision of the softmax.
    """

    ece: EqualWidth = _PRINCIPLED
    mce: EqualWidth = _PRINCIPLED
    ace: Quantile = "midrank"
    softmax: Softmax = "float64"


DEFAULT = Convention()
TCPT = Convention(
    ece=EqualWidth(closed="right", edges="float32", outermost="drop"),
    mce=_LEFT_CLOSED,
    ace="linear",
    softmax="input",
)
DAC = Convention(
    ece=EqualWidth(closed="left", edges="linspace", outermost="weigh"),
    mce=_LEFT_CLOSED,
    ace="linear",
)

conventions: Registry[Convention] = Registry("metric convention")
for _name, _convention in (("default", DEFAULT), ("tcpt", TCPT), ("dac", DAC)):
    conventions.register(_name)(_convention)


def find_convention(convention: Convention | str) -> Convention:
    """A convention by its name; a `Convention` is returned as it is.

    >>> find_convention("dac") is DAC
    True
    """
    return conventions.get(convention) if isinstance(convention, str) else convention
