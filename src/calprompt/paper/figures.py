"""The figures of the paper by name."""

from __future__ import annotations

from calprompt.report.figures import FigureInfo, paper_sweeps


def _info(function: str, title: str, needs: str, sweep: str) -> FigureInfo:
    return FigureInfo(f"calprompt.paper.{function}", title, needs, paper_sweeps(sweep))


FIGURES = {
    "margin-spread": _info("margins:margin_spread", "how far margins vary, against ECE", "logits", "miscalibration"),
    "margins": _info("margins:margins", "margins under several losses: distribution and boxes", "logits", "margins"),
    "text-features": _info(
        "text_features:text_features", "text features before and after, by t-SNE", "logits", "text-features"
    ),
    "shots": _info("settings:shots", "accuracy and ECE against training images per class", "rows", "shots"),
    "phrases": _info("settings:phrases", "accuracy and ECE from several initial phrases", "rows", "phrases"),
    "alpha-beta": _info(
        "settings:alpha_beta", "accuracy and ECE over the weights of the margin loss", "rows", "alpha-beta"
    ),
    "lambda": _info(
        "settings:moment_weight", "accuracy and ECE against the weight of the moment loss", "rows", "lambda"
    ),
    "gradients": _info("training:gradients", "ratios of gradient norms over steps", "steps", "gradients"),
    "cost": _info("training:cost", "time and memory of training", "rows", "time"),
}
