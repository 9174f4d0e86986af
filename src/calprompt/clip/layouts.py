"""The three ways of naming CLIP's tensors, converted to one.

layout         recognised by                           activation            heads
openai         input_resolution, context_length and    QuickGELU             64 channels each
               vocab_size among its tensors
huggingface    text_model.* and vision_model.* names   config.json           config.json
open_clip      anything else                           open_clip's config    open_clip's config

The result has the names of open_clip's class `CLIP`.
"""

from __future__ import annotations

import re

import torch

from calprompt.clip.weights import State
from calprompt.errors import BackboneError
from calprompt.registry import unknown
from calprompt.text import shorten

LAYOUTS = ("openai", "open_clip", "huggingface")

_MARKERS = ("input_resolution", "context_length", "vocab_size")

_HF_TENSORS = {
    "logit_scale": "logit_scale",
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm.weight": "ln_final.weight",
    "text_model.final_layer_norm.bias": "ln_final.bias",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.pre_layrnorm.weight": "visual.ln_pre.weight",
    "vision_model.pre_layrnorm.bias": "visual.ln_pre.bias",
    "vision_model.post_layernorm.weight": "visual.ln_post.weight",
    "vision_model.post_layernorm.bias": "visual.ln_post.bias",
}
_HF_TRANSPOSED = {"text_projection.weight": "text_projection", "visual_projection.weight": "visual.proj"}
_HF_BLOCK = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}

_FOREIGN = {  # prefixes of tensor names that only other models have
    "logit_bias": "a SigLIP model (logit_bias); its scores are not CLIP's",
    "visual.attn_pool.": "attentional pooling (visual.attn_pool); class-token pooling is supported",
    "text_decoder.": "CoCa (text_decoder); CLIP is supported",
    "text.transformer.embeddings.": "a Hugging Face text tower (text.transformer.embeddings); CLIP's own is supported",
    "cls_emb": "a text tower pooled at a class token (cls_emb); pooling at end-of-text is supported",
}


def recognise(state: State) -> str:
    """The layout of a file's tensors."""
    if all(marker in state for marker in _MARKERS):
        return "openai"
    if any(name.startswith(("text_model.", "vision_model.")) for name in state):
        return "huggingface"
    return "open_clip"


def convert(state: State, layout: str) -> State:
    """The same tensors under the names of open_clip's class `CLIP`."""
    if layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS)
    state = _from_huggingface(state) if layout == "huggingface" else dict(state)
    if "text.token_embedding.weight" in state:  # open_clip's CustomTextCLIP
        state = {name.removeprefix("text."): tensor for name, tensor in state.items()}
    for prefix, model in _FOREIGN.items():
        if any(name.startswith(prefix) for name in state):
            raise BackboneError(f"these are weights of {model}")
    ignored = _MARKERS if layout == "openai" else ()
    state = {name: tensor for name, tensor in state.items() if name not in ignored and not name.endswith("attn_mask")}
    if "logit_scale" in state and state["logit_scale"].numel() == 1:
        state["logit_scale"] = state["logit_scale"].reshape(())
    return state


def _from_huggingface(state: State) -> State:
    converted: State = {}
    for name, tensor in state.items():
        block = re.fullmatch(r"(text|vision)_model\.encoder\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
        if name.endswith("position_ids"):
            continue
        if block is None:
            if name in _HF_TRANSPOSED:
                converted[_HF_TRANSPOSED[name]] = tensor.T
            else:
                converted[_HF_TENSORS.get(name, name)] = tensor
            continue
        tower, number, part, kind = block.groups()
        prefix = f"{'visual.' if tower == 'vision' else ''}transformer.resblocks.{number}."
        if part == "self_attn.q_proj":
            rows = [name.replace(".q_proj.", f".{letter}_proj.") for letter in "qkv"]
            missing = [row for row in rows if row not in state]
            if missing:
                raise BackboneError(f"missing tensors: {shorten(missing)}")
            converted[f"{prefix}attn.in_proj_{kind}"] = torch.cat([state[row] for row in rows])  # [3 width, ...]
        elif part not in ("self_attn.k_proj", "self_attn.v_proj"):
            converted[f"{prefix}{_HF_BLOCK.get(part, part)}.{kind}"] = tensor
    return converted
