"""How prompts are trained, as settings, and the sums of losses that have a name; needs no torch.

A name that is also that of a loss (mbls, penalty) means the published sum when it stands alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calprompt.errors import SettingError
from calprompt.registry import check_types
from calprompt.text import plural

LARGEST = 3.4028234663852886e38  # float32's largest number, which the optimiser can use
AUTOCAST = ("bfloat16", "float16")


@dataclass(frozen=True)
class TrainingConfig:
    """How prompts are trained; the defaults are those of TCPT's CoOp, base to novel.

    Attributes:
        epochs: Passes over the training images.
        batch_size: Images in a training step.
        lr: Learning rate.
        momentum: SGD momentum.
        weight_decay: SGD weight decay.
        warmup_epochs: Epochs at a small constant learning rate before the schedule begins.
        warmup_lr: Learning rate of these epochs.
        seed: Seed of shots, prompts and batches.
        diagnose_every: Steps between measurements of every term's gradient norm; 0: never.
        autocast: Run the frozen towers in bfloat16 or float16; prompts stay in float32.
    """

    epochs: int = 50
    batch_size: int = 32
    lr: float = 0.002
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: int = 1
    warmup_lr: float = 1e-5
    seed: int = 1
    diagnose_every: int = 0
    autocast: str | None = None

    def __post_init__(self) -> None:
        check_types("", type(self).__init__, vars(self))
        for name, least in (("epochs", 1), ("batch_size", 1), ("warmup_epochs", 0), ("seed", 0), ("diagnose_every", 0)):
            if getattr(self, name) < least:
                raise SettingError(f"must be at least {least}, got {getattr(self, name)}", parameter=name)
        if self.seed >= 2**32:
            raise SettingError(f"must be below {2**32}, got {self.seed}", parameter="seed")
        if not 0 < self.lr < LARGEST:
            raise SettingError(f"must be a positive number that float32 can hold, got {self.lr}", parameter="lr")
        for name in ("momentum", "weight_decay", "warmup_lr"):
            if not 0 <= getattr(self, name) < LARGEST:
                raise SettingError(f"must be a number, 0 or more; got {getattr(self, name)}", parameter=name)
        if self.autocast not in (None, *AUTOCAST):
            raise SettingError(f"must be {', '.join(AUTOCAST)} or nothing, got {self.autocast!r}", parameter="autocast")


def never_used(epochs: int, warmup_epochs: int) -> SettingError:
    """The error for a learning rate that is not used because every epoch is warm-up."""
    return SettingError(
        f"is never used: training has {plural(epochs, 'epoch')}, and warm-up takes {warmup_epochs} with a rate of its "
        f"own; give {warmup_epochs + 1} epochs or more",
        parameter="lr",
    )


def learning_rate(epoch: int, config: TrainingConfig) -> float:
    """Learning rate of an epoch, from 1: constant while warming up, then half a cosine that is cut before it reaches 0.

    >>> [round(learning_rate(e, TrainingConfig(epochs=5, lr=0.0035)), 6) for e in range(1, 6)]
    [1e-05, 0.0035, 0.003166, 0.002291, 0.001209]
    """
    if epoch <= config.warmup_epochs:
        return config.warmup_lr
    since = epoch - config.warmup_epochs - 1
    return 0.5 * config.lr * (1 + math.cos(math.pi * since / config.epochs))


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
