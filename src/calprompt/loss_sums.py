"""Sums of losses that have a name; importing them needs no torch.

A name that is also that of a loss (mbls, penalty) means the published sum when it stands alone.
"""

NAMED = {
    "tcpt": "ce + margin(alpha=0.1, beta=0.01) + 5*moments",  # the paper's objective, with its weights
    # baselines; zs_norm, label_smoothing and focal are single losses
    "mbls": "ce + 0.1*mbls(margin=10)",
    "penalty": "ce + 10*penalty",
    # its parts
    "margin_only": "ce + margin",
    "margin_mean_only": "ce + margin(beta=0)",
    "margin_variance_only": "ce + margin(alpha=0)",
    "moments_only": "ce + 5*moments",
    "mean_moment_only": "ce + 5*moments(covariance_weight=0)",
    "covariance_only": "ce + 5*moments(mean_weight=0)",
    # another alignment of the text features in place of the moments, with the same weight
    "margin_l1": "ce + margin + 5*l1",
    "margin_l2": "ce + margin + 5*l2",
    "margin_similarity": "ce + margin + 5*similarity",
    "margin_otpt": "ce + margin + 5*otpt",
}
