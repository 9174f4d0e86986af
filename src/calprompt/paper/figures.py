"""The figures of the paper by name."""

from __future__ import annotations

from calprompt.report.figures import FigureInfo, paper_sweeps


def _info(function: str, title: str, needs: str, sweep: str) -> FigureInfo:
    return FigureInfo(f"calprompt.paper.{function}", title, needs, paper_sweeps(sweep))


FIGURES = {
    "margin-spread": _info(
        "logit_figures:margin_spread", "how far margins vary, against ECE", "logits", "miscalibration"
    ),
    "margins": _info(
        "logit_figures:margins", "margins under several losses: distribution and boxes", "logits", "margins"
    ),
    "text-features": _info(
        "logit_figures:text_features", "text features before and after, by t-SNE", "logits", "text-features"
    ),
    "shots": _info("setting_figures:shots", "accuracy and ECE against training images per class", "rows", "shots"),
    "phrases": _info("setting_figures:phrases", "accuracy and ECE from several initial phrases", "rows", "phrases"),
    "alpha-beta": _info(
        "setting_figures:alpha_beta", "accuracy and ECE over the weights of the margin loss", "rows", "alpha-beta"
    ),
    "lambda": _info(
        "setting_figures:moment_weight", "accuracy and ECE against the weight of the moment loss", "rows", "lambda"
    ),
    "gradients": _info("setting_figures:gradients", "ratios of gradient norms over steps", "steps", "gradients"),
    "cost": _info("setting_figures:cost", "time and memory of training", "rows", "time"),
}
