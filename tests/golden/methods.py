"""How the golden settings of each method read here: its tuner, its parameters' names, its terms' names and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from calprompt.clip.backbone import Backbone
from calprompt.tuners import CoCoOp, CoOp, KgCoOp, MaPLe, ProDA, ProGrad, PromptSRC, Tuner

Case = Mapping[str, Any]


@dataclass(frozen=True)
class Method:
    """build       the tuner of a case, for a class list
    parameters  theirs -> ours
    terms       their name of a loss -> ours and the weight it carries here
    """

    build: Callable[[Case, Backbone, list[str]], Tuner]
    parameters: Callable[[Tuner], dict[str, str]]
    terms: Callable[[Tuner], dict[str, tuple[str, float]]] = field(default=lambda tuner: {})


def options(case: Case) -> dict[str, Any]:
    """Settings by their last word, lower case: COOP.N_CTX -> n_ctx."""
    return {name.split(".")[-1].lower(): value for name, value in case["hyperparameters"].items()}


def base(case: Case) -> dict[str, Any]:
    return {"template": case["zero_shot_template"] or "a photo of a {}."}


def context_only(tuner: Tuner) -> dict[str, str]:
    return {"prompt_learner.ctx": "context"}


def words_and_count(given: dict[str, Any]) -> dict[str, Any]:
    """The public code counts words, not tokens; a context that is given by words ignores N_CTX."""
    words = (given["ctx_init"] or "").replace("_", " ")
    return {"words": words or None, "context": len(words.split(" ")) if words else given["n_ctx"]}


def coop(case: Case, model: Backbone, names: list[str]) -> Tuner:
    given = options(case)
    place = {"position": given["class_token_position"], "class_specific": given["csc"]}
    return CoOp(model, names, **words_and_count(given), **place, **base(case))


def cocoop(case: Case, model: Backbone, names: list[str]) -> Tuner:
    return CoCoOp(model, names, **words_and_count(options(case)), text_of="last", **base(case))


def cocoop_parameters(tuner: Tuner) -> dict[str, str]:
    layers = {"linear1": 0, "linear2": 2}
    meta_net = {
        f"prompt_learner.meta_net.{theirs}.{part}": f"meta_net.{ours}.{part}"
        for theirs, ours in layers.items()
        for part in ("weight", "bias")
    }
    return context_only(tuner) | meta_net


def kgcoop(case: Case, model: Backbone, names: list[str]) -> Tuner:
    given, literal = options(case), case["variant"] == "tcpt_literal"
    start = words_and_count({**given, "ctx_init": "a photo of a" if given["ctx_init"] else ""})
    place = {"position": given["class_token_position"], "class_specific": given["csc"]}
    pull = {"pull": "orthogonality"} if literal else {"weight": given["w"]}
    return KgCoOp(model, names, **start, **place, **pull, **base(case))


def kgcoop_terms(tuner: Tuner) -> dict[str, tuple[str, float]]:
    return {"score": ("knowledge", tuner.weight), "prompt_similarity_unweighted": ("orthogonality", tuner.weight)}


def prograd(case: Case, model: Backbone, names: list[str]) -> Tuner:
    given = options(case)
    return ProGrad(
        model,
        names,
        context=given["n_ctx"],
        from_template=bool(given["ctx_init"]),
        temperature=given["t"],
        strength=given["lambda"],
        projection=case["variant"] != "tcpt_literal",
        position=given["class_token_position"],
        class_specific=given["csc"],
        **base(case),
    )


def few_words(words: str, context: int) -> str | None:
    """MaPLe's and PromptSRC's code starts from words only if there are at most four vectors."""
    return words if words and context <= 4 else None


def maple(case: Case, model: Backbone, names: list[str]) -> Tuner:
    given = options(case)
    return MaPLe(
        model,
        names,
        context=given["n_ctx"],
        words=few_words(given["ctx_init"], given["n_ctx"]),
        depth=given["prompt_depth"],
        **base(case),
    )


def maple_parameters(tuner: Tuner) -> dict[str, str]:
    names = context_only(tuner) | {f"prompt_learner.proj.{part}": f"to_image.{part}" for part in ("weight", "bias")}
    for k in range(len(tuner.deep)):
        names[f"prompt_learner.compound_prompts_text.{k}"] = f"deep.{k}"
        for part in ("weight", "bias"):
            names[f"prompt_learner.compound_prompt_projections.{k}.{part}"] = f"deep_to_image.{k}.{part}"
    return names


def promptsrc(case: Case, model: Backbone, names: list[str]) -> Tuner:
    given = options(case)
    return PromptSRC(
        model,
        names,
        context=given["n_ctx_text"],
        visual=given["n_ctx_vision"],
        words=few_words(given["ctx_init"], given["n_ctx_text"]),
        depth=given["prompt_depth_text"],
        visual_depth=given["prompt_depth_vision"],
        text_weight=given["text_loss_weight"],
        image_weight=given["image_loss_weight"],
        teacher=60 if case["variant"] == "plain" else 80,
        average=(given["gpa_mean"], given["gpa_std"]),
        **base(case),
    )


def promptsrc_parameters(tuner: Tuner) -> dict[str, str]:
    names = context_only(tuner) | {"image_encoder.VPT": "visual"}
    for k in range(len(tuner.deep)):
        names[f"text_encoder.transformer.resblocks.{k + 1}.VPT_shallow"] = f"deep.{k}"
    for k in range(len(tuner.deep_visual)):
        names[f"image_encoder.transformer.resblocks.{k + 1}.VPT_shallow"] = f"deep_visual.{k}"
    return names


def promptsrc_terms(tuner: Tuner) -> dict[str, tuple[str, float]]:
    return {
        "scl_text_l1_unweighted": ("text_consistency", tuner.text_weight),
        "scl_image_l1_unweighted": ("image_consistency", tuner.image_weight),
        "scl_logits": ("logit_consistency", tuner.logit_weight),
    }


def proda(case: Case, model: Backbone, names: list[str]) -> Tuner:
    given = options(case)
    return ProDA(
        model,
        names,
        context=given["n_ctx"],
        prompts=given["n_prompt"],
        prompt_batch=given["prompt_bs"],
        similarity=given["alpha"],
        keep_underscores=True,
        **base(case),
    )


METHODS = {
    "CoOp": Method(coop, context_only),
    "CoCoOp": Method(cocoop, cocoop_parameters),
    "KgCoOp": Method(kgcoop, context_only, kgcoop_terms),
    "ProGrad": Method(prograd, context_only, lambda tuner: {"kl": ("distillation", 1.0)}),
    "MaPLe": Method(maple, maple_parameters),
    "PromptSRC": Method(promptsrc, promptsrc_parameters, promptsrc_terms),
    "ProDA": Method(
        proda,
        context_only,
        lambda tuner: {"prompt_similarity_unweighted": ("prompt_similarity", tuner.similarity)},
    ),
}
