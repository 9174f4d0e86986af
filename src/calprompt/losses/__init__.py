"""Train-time losses. The functions take plain tensors and fit any training loop; the objects read `Outputs`."""

from calprompt.losses.base import Loss, losses
from calprompt.losses.logits import (
    CrossEntropy,
    Focal,
    LabelSmoothing,
    MarginLabelSmoothing,
    Penalty,
    ZeroShotNorm,
    focal_loss,
    margin_label_smoothing,
    range_penalty,
    rescale_to_range,
    smoothed_cross_entropy,
    zero_shot_normalised_cross_entropy,
)
from calprompt.losses.objective import NAMED, Objective
from calprompt.losses.tcpt import Margin, Moments, margins, mean_variance_margin, text_moment_matching
from calprompt.losses.text_features import (
    ClassOrthogonality,
    Similarity,
    TextL1,
    TextL2,
    orthogonality_penalty,
    similarity_gap,
    text_l1,
    text_l2,
)

available = losses.available
get = losses.get
register = losses.register
