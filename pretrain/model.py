"""The pocket architecture in open_clip's form, with text towers that read only the words there are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from open_clip.model import CLIP
from open_clip.tokenizer import SimpleTokenizer
from torch import Tensor

from pretrain.captions import FRAMES
from pretrain.concepts import Concept

CONTEXT = 48
CONFIG = {
    "embed_dim": 128,
    "vision_cfg": {"image_size": 48, "patch_size": 8, "width": 128, "layers": 5, "head_width": 32},
    "text_cfg": {"context_length": CONTEXT, "vocab_size": 49408, "width": 128, "heads": 4, "layers": 3},
}
START, END = 49406, 49407


class Words:
    """The tokens that captions can have, numbered from 0; the end of a text is the last of all.

    Training a table of these few thousand rows instead of CLIP's 49,408 is the same mathematics and far less work.
    """

    def __init__(self, concepts: list[Concept]) -> None:
        self._tokenizer = SimpleTokenizer()
        texts = [frame.replace("{}", " ") for frames in FRAMES.values() for frame in frames]
        texts += ["flag of", "with", ", a type of", ":", "."]
        for concept in concepts:
            texts += [*concept.names, concept.label, *concept.keywords, concept.kind]
            texts += [f"{name}{mark}" for name in concept.names for mark in ".,:"]
            texts += [f"{word}{mark}" for word in (*concept.keywords, concept.kind) for mark in ".,:"]
        tokens = {token for text in texts for token in self._tokenizer.encode(text)}
        self.tokens = [*sorted(tokens - {START, END}), START, END]
        self._number = {token: number for number, token in enumerate(self.tokens)}

    @property
    def digest(self) -> str:
        """Of the tokens: a checkpoint's rows mean these words and no others."""
        return hashlib.sha256(repr(self.tokens).encode()).hexdigest()[:16]

    def check(self, record: Mapping[str, object], checkpoint: Path) -> None:
        """Refuse a checkpoint of other words."""
        if record.get("words") != self.digest:
            raise SystemExit(f"{checkpoint} was trained with words of another pool.npz; remove one of the two")

    def encode(self, text: str) -> list[int]:
        """Numbers of a text's tokens, with start and end."""
        tokens = [START, *self._tokenizer.encode(text)[: CONTEXT - 2], END]
        return [self._number[token] for token in tokens]

    def batch(self, texts: list[str]) -> Tensor:
        """[n, longest], padded with 0 after the end."""
        rows = [self.encode(text) for text in texts]
        longest = max(map(len, rows))
        return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


def deeper(layers: int) -> dict:
    """The pocket's configuration with another number of blocks in the text tower."""
    return {**CONFIG, "text_cfg": {**CONFIG["text_cfg"], "layers": layers}}


def build(words: Words, patch_dropout: float = 0.0, config: dict = CONFIG) -> CLIP:
    """A new model whose table of tokens has only these words."""
    text = {**config["text_cfg"], "vocab_size": len(words.tokens)}
    return CLIP(config["embed_dim"], {**config["vision_cfg"], "patch_dropout": patch_dropout}, text)


def encode_text(model: CLIP, tokens: Tensor) -> Tensor:
    """Features of texts that are shorter than the context; exact, since the mask is causal."""
    length = tokens.shape[1]
    x = model.token_embedding(tokens) + model.positional_embedding[:length]
    x = model.transformer(x, attn_mask=model.attn_mask[:length, :length])
    return model.ln_final(x)[torch.arange(len(x)), tokens.argmax(1)] @ model.text_projection


def encode_texts(model: CLIP, words: Words, texts: list[str], short: int = 14) -> Tensor:
    """[n, D] in the order of the texts; long ones are encoded apart, so that short ones are not padded to them."""
    lengths = [len(words.encode(text)) for text in texts]
    order = [i for i, n in enumerate(lengths) if n <= short] + [i for i, n in enumerate(lengths) if n > short]
    cut = sum(n <= short for n in lengths)
    parts = [part for part in (order[:cut], order[cut:]) if part]
    features = torch.cat([encode_text(model, words.batch([texts[i] for i in part])) for part in parts])
    return features[torch.tensor(order).argsort()]
