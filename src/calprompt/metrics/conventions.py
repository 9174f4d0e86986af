"""How public evaluators bin: named conventions, so that published numbers can be recomputed.

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

from calprompt.metrics.binning import EqualWidth, Quantile
from calprompt.metrics.inputs import Softmax
from calprompt.registry import Registry

_PRINCIPLED = EqualWidth()
_LEFT_CLOSED = EqualWidth(closed="left", edges="linspace")


@dataclass(frozen=True)
class Convention:
    """The choices of an evaluator that its tables do not mention.

    Attributes:
        ece: Bins of ECE and class-wise ECE.
        mce: Bins of MCE and of weighted MCE.
        ace: How ACE assigns samples to bins.
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
