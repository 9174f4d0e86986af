"""Train-time losses. The functions take plain tensors and fit any training loop; the objects read `Outputs`."""

from calprompt.losses.cross_entropy import CrossEntropy
from calprompt.losses.margin import Margin, margins, mean_variance_margin
from calprompt.losses.moments import Moments, text_moment_matching
from calprompt.losses.objective import NAMED, Objective
from calprompt.losses.registry import Loss, losses

available = losses.available
get = losses.get
register = losses.register

__all__ = [
    "NAMED",
    "CrossEntropy",
    "Loss",
    "Margin",
    "Moments",
    "Objective",
    "available",
    "get",
    "losses",
    "margins",
    "mean_variance_margin",
    "register",
    "text_moment_matching",
]
