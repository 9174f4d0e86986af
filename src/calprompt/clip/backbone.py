"""A backbone: a frozen CLIP with its tokenizer, its preprocessing and its logit scale."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from calprompt.class_names import check_class_names, fill_template, readable
from calprompt.clip.model import encode_image, is_timm_tower, is_vision_transformer
from calprompt.clip.open_clip_files import PLACEHOLDER, Tokenizer
from calprompt.clip.preprocessing import Preprocessing
from calprompt.clip.prompts import PromptLayout, TextPrompts, VisualPrompts, lay_out
from calprompt.clip.text import encode_text
from calprompt.errors import SettingError
from calprompt.hardware import check_half_precision

HALF = (torch.float16, torch.bfloat16)
SMALL_TOWERS = 10_000_000  # weights of two towers that one thread is enough for
_KEEP: Any = object()


@dataclass(frozen=True, eq=False, repr=False)
class Backbone:
    """Encodes texts and images, under prompts or not; never trained, and never changed after loading.

    What a run wants different is a `view` of the same weights, so that a server, or several runs, may share one.

    Attributes:
        model: Its weights, frozen: `Clip`, or open_clip's model where the image tower is not a vision transformer.
        preprocessing: How an image becomes its input.
        name: What it was loaded from.
        fingerprint: Digest of its weights and architecture: equal weights, equal fingerprint.
        autocast: What the towers run in; `None`: the dtype of their weights.
        chunk: Classes whose text is encoded at a time, with activations computed again for the gradient instead of
            kept: less memory, more time; `None`: all at once, kept.
        fixed_scale: What `logit_scale` is instead of the model's own; `None`: the model's own.
    """

    model: Any  # Clip | open_clip.model.CLIP, which share no typed interface
    preprocessing: Preprocessing
    name: str
    fingerprint: str
    autocast: torch.dtype | None = None
    chunk: int | None = None
    fixed_scale: float | None = None
    _warned_of: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.model.training or any(weight.requires_grad for weight in self.model.parameters()):  # not of a view
            self.model.eval().requires_grad_(False)

    def __repr__(self) -> str:
        return f"Backbone({self.name!r}, {self.dtype}, {self.device})"

    def view(
        self,
        *,
        autocast: torch.dtype | str | None = _KEEP,
        chunk: int | None = _KEEP,
        crop: float = _KEEP,
        logit_scale: float | None = _KEEP,
    ) -> Backbone:
        """The same weights, used in another way; this backbone stays as it is.

        Args:
            autocast: What the towers run in, such as `torch.bfloat16`; prompts, features and logits stay as they are.
            chunk: Classes encoded at a time.
            crop: The smallest share of an image's area in a training view.
            logit_scale: What cosines are multiplied with; `None`: what the model says.
        """
        changes: dict[str, Any] = {}
        if autocast is not _KEEP:
            found = getattr(torch, autocast, autocast) if isinstance(autocast, str) else autocast
            if found is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
                raise SettingError(f"must be bfloat16, float16 or None, got {autocast!r}", parameter="autocast")
            changes["autocast"] = found
        if chunk is not _KEEP:
            if chunk is not None and chunk < 1:
                raise SettingError(
                    f"must be at least 1, or None for all classes at once; got {chunk}", parameter="chunk"
                )
            changes["chunk"] = chunk
        if crop is not _KEEP:
            changes["preprocessing"] = replace(self.preprocessing, crop=crop)
        if logit_scale is not _KEEP:
            if logit_scale is not None and not 0 < logit_scale < float("inf"):
                raise SettingError(
                    f"must be a number above 0, or None for the model's; got {logit_scale}", parameter="logit_scale"
                )
            changes["fixed_scale"] = logit_scale
        return replace(self, **changes)

    def to(self, device: str | torch.device) -> Backbone:
        """A copy on another device, or this one if it is there already."""
        try:
            device = torch.device(device)
        except RuntimeError as error:
            raise SettingError(f"unknown device {device!r}; expected cpu, cuda, cuda:1, …") from error
        return self if device == self.device else replace(self, model=copy.deepcopy(self.model).to(device))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, with the context length of this model."""
        return Tokenizer(self.model.positional_embedding.shape[0])

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.positional_embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weight matrices; features are returned in float32 or better."""
        return self.model.transformer.resblocks[0].mlp.c_fc.weight.dtype

    @property
    def computes_in(self) -> torch.dtype:
        """Dtype of the matrix products in the towers."""
        return self.autocast or self.dtype

    @property
    def prompt_dtype(self) -> torch.dtype:
        """Dtype of prompts and features: float32, or float64 for a float64 backbone."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def logit_scale(self) -> Tensor:
        """The factor from cosines to logits: about 100."""
        own = self.model.logit_scale.to(self.prompt_dtype).exp()
        return own if self.fixed_scale is None else torch.full_like(own, self.fixed_scale)

    @property
    def embed_dim(self) -> int:
        """Dimensions of a feature."""
        return int(self.model.text_projection.shape[1])

    @property
    def text_width(self) -> int:
        """Dimensions of a token vector of the text tower."""
        return int(self.model.positional_embedding.shape[1])

    @property
    def text_depth(self) -> int:
        """Blocks of the text tower."""
        return len(self.model.transformer.resblocks)

    @property
    def is_vit(self) -> bool:
        """Whether the image tower is CLIP's vision transformer, which visual prompts need."""
        return is_vision_transformer(self.model.visual)

    @property
    def image_width(self) -> int:
        """Dimensions of a token vector of the image tower."""
        self.require_vit("the width of its tokens")
        return int(self.model.visual.conv1.out_channels)

    @property
    def image_depth(self) -> int:
        """Blocks of the image tower."""
        self.require_vit("the number of its blocks")
        return len(self.model.visual.transformer.resblocks)

    @cached_property
    def is_small(self) -> bool:
        """Whether both towers are so small that one thread is enough."""
        towers = (self.model.visual, self.model.transformer)
        return sum(weight.numel() for tower in towers for weight in tower.parameters()) < SMALL_TOWERS

    def require_vit(self, what: str) -> None:
        """Raise unless the image tower is a vision transformer."""
        if not self.is_vit:
            tower = "a residual network"
            if self.is_timm:
                tower = f"an image tower of timm's ({self.model.visual.trunk.default_cfg['architecture']})"
            raise SettingError(
                f"{what} needs CLIP's vision transformer, and backbone {self.name!r} has {tower}; "
                "choose a ViT backbone or a tuner that learns text prompts only"
            )

    @property
    def is_timm(self) -> bool:
        """Whether the image tower is one of timm's."""
        return is_timm_tower(self.model.visual)

    @contextmanager
    def limited_threads(self) -> Iterator[None]:
        """Limit torch to one thread if this is a small CLIP on a CPU.

        Its products are so short that a second thread saves a sixth of the time at best, and on a busy machine, where
        the two wait for each other, takes ten times as long. The result is then the same with any number of threads.
        """
        before = torch.get_num_threads()
        torch.set_num_threads(1 if self.is_small and self.device.type == "cpu" else before)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _precision(self) -> AbstractContextManager[Any]:
        """The precision of the towers: autocast, or their own dtype."""
        if self.device.type == "cpu" and self.computes_in in HALF:
            check_half_precision(self.computes_in)
        return torch.autocast(self.device.type, dtype=self.autocast) if self.autocast else nullcontext()

    def embed(self, ids: Sequence[int] | Tensor) -> Tensor:
        """Frozen token embeddings, without positions: [...] -> [..., W]."""
        ids = torch.as_tensor(ids, dtype=torch.long, device=self.device)
        return self.model.token_embedding(ids).detach().to(self.prompt_dtype)

    def layout(
        self,
        names: Sequence[str],
        phrase: str | int,
        *,
        context: int | None = None,
        position: str = "end",
        class_specific: bool = False,
        keep_underscores: bool = False,
    ) -> PromptLayout:
        """The prompts "phrase name." of a class list, as places for learned vectors among frozen tokens.

        Args:
            names: Class names.
            phrase: The words before the name, or a number of placeholders.
            context: How many tokens of the phrase are learned; `None`: all of them.
            position: Where the class name is: end, middle or front.
            class_specific: Every class has vectors of its own.
            keep_underscores: Read names as they are, but count their tokens as if underscores were blanks.
        """
        if isinstance(names, str):
            check_class_names(names)
        if not names:
            raise SettingError("no class names were given; at least one is needed")
        if isinstance(phrase, int):
            phrase = " ".join([PLACEHOLDER] * phrase)
        head = self.tokenizer.sequence(phrase)[:-1]
        context = len(head) - 1 if context is None else context
        if context > len(head) - 1:
            raise SettingError(f"{context} context vectors do not fit the {len(head) - 1} tokens of {phrase!r}")
        read = [name if keep_underscores else readable(name) for name in names]
        texts = [f"{phrase} {name}." for name in read]
        sequences = [self.tokenizer.sequence(text, of=name) for text, name in zip(texts, names, strict=True)]
        self._warn_of_unseen(texts)
        tails = [sequence[len(head) :] for sequence in sequences]
        lengths = [len(tail) for tail in tails]
        # the text after the name is "." and the end; a name that ends in punctuation may swallow the "."
        named = [
            min(len(self.tokenizer.ids(readable(name))), len(tail) - 1) for name, tail in zip(names, tails, strict=True)
        ]
        prefix, rests = lay_out(len(head), context, named, lengths, position, class_specific)
        rows, frozen = [row for rest in rests for row in rest], head + [token for tail in tails for token in tail]
        return PromptLayout(
            names=tuple(names),
            ids=self.tokenizer.pad(sequences),
            frozen=self.embed(frozen),
            prefix=torch.tensor(prefix, device=self.device),
            rest=torch.tensor(rows, device=self.device),
            lengths=tuple(len(rest) for rest in rests),
            context_shape=(len(names), context) if class_specific else (context,),
            learns_rest=max(rows) >= len(frozen),
        )

    def _warn_of_unseen(self, texts: Sequence[str]) -> None:
        """Warn once of words that this backbone was not trained on, whose token embeddings are zero."""
        if self.device.type == "meta":  # shapes without numbers
            return
        words = {word: self.tokenizer.ids(word) for word in dict.fromkeys(" ".join(texts).split())}
        tokens = sorted({token for ids in words.values() for token in ids})
        seen = self.model.token_embedding(torch.tensor(tokens, device=self.device)).any(1).tolist()
        unseen = {token for token, known in zip(tokens, seen, strict=True) if not known}
        strange = dict.fromkeys(word.strip(".,") for word, ids in words.items() if not unseen.isdisjoint(ids))
        new = [word for word in strange if word not in self._warned_of]
        self._warned_of.update(new)
        if new:
            named = ", ".join(map(repr, new))
            warnings.warn(
                f"backbone {self.name!r} has never seen {named}: its answers for such words mean little. Use words "
                "it knows, or a larger CLIP.",
                stacklevel=3,
            )

    def encode_text(self, prompts: TextPrompts) -> Tensor:
        """Text features [N, C, D] of prompts, not normalised; see `calprompt.clip.text`."""
        with self._precision():
            again = self.chunk is not None and torch.is_grad_enabled()
            return encode_text(self.model, prompts, chunk=self.chunk, checkpointing=again)

    def encode_image(self, images: Tensor, prompts: VisualPrompts | None = None) -> Tensor:
        """Image features [B, D], not normalised; see `calprompt.clip.model`.

        Args:
            images: Pixels [B, 3, size, size] as `preprocessing` makes them.
            prompts: Prompts of the image tower, if any.
        """
        size = self.preprocessing.size
        if not isinstance(images, Tensor) or not images.is_floating_point() or images.shape[1:] != (3, size, size):
            got = f"{images.dtype} {list(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
            raise SettingError(
                f"must be a tensor of normalised pixels [n, 3, {size}, {size}] in floating point, as "
                f"backbone.preprocessing.evaluation() makes of a PIL image; got {got}",
                parameter="images",
            )
        with self._precision():
            return encode_image(self.model.visual, images.to(self.device), prompts)

    @torch.no_grad()
    def encode_strings(self, texts: Sequence[str], *, warn: bool = True) -> Tensor:
        """Text features [texts, D] of plain sentences, not normalised; a shared beginning is encoded once.

        Args:
            texts: The sentences.
            warn: Warn of words that the backbone has never seen.
        """
        if isinstance(texts, str) or not len(texts):
            raise SettingError(f"must be a list of sentences, at least one; got {texts!r}", parameter="texts")
        sequences = [self.tokenizer.sequence(text) for text in texts]
        if warn:
            self._warn_of_unseen(texts)
        shortest = min(len(sequence) for sequence in sequences) - 1
        shared = 1
        while shared < shortest and len({sequence[shared] for sequence in sequences}) == 1:
            shared += 1
        prompts = TextPrompts(
            prefix=self.embed(sequences[0][:shared])[None],
            rest=self.embed([token for sequence in sequences for token in sequence[shared:]])[None],
            lengths=tuple(len(sequence) - shared for sequence in sequences),
        )
        return self.encode_text(prompts)[0]

    def zero_shot(self, names: Sequence[str], template: str | Sequence[str] = "a photo of a {}.") -> Tensor:
        """Unit text features [C, D] of the untuned model.

        Args:
            names: Class names.
            template: A sentence with {} for the name. With several, each class's unit features are averaged and
                normalised again.
        """
        names = check_class_names(names, allow_repeated=True)
        templates = [template] if isinstance(template, str) else list(template)
        if not templates:
            raise SettingError("template is empty; give at least one sentence with {} for the class name")
        features = [unit(self.encode_strings([fill_template(each, name) for name in names])) for each in templates]
        return features[0] if len(features) == 1 else unit(torch.stack(features).mean(dim=0))


def unit(features: Tensor) -> Tensor:
    """Features divided by their length."""
    return F.normalize(features, dim=-1, eps=1e-12)
