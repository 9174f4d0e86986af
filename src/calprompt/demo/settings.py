"""What the demonstration compares, as settings. Reading their names and defaults needs no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from calprompt.errors import SettingError
from calprompt.registry import check_types
from calprompt.runs.config import RunConfig, build_config, read_recipe


@dataclass(frozen=True)
class DemoSettings:
    """What is compared; checked when it is made.

    Attributes:
        data: Datasets: folders, tables or names of 'calprompt data list'.
        seeds: Runs of each method, with seeds 1, 2, …
        epochs: Passes over the training images; the recipe's 50 if None.
        backbone: As 'calprompt train' takes it.
        recipe: Settings of CoOp; the loss is that of each method.
        bins: Bins of the calibration errors.
        resamples: Resamples for the intervals.
    """

    data: tuple[str, ...] = ("pocket_signs", "pocket_photos")
    seeds: int = 3
    epochs: int | None = None
    backbone: str = "pocket-photo"
    recipe: str = "coop-photo"
    bins: int = 10
    resamples: int = 1000

    def __post_init__(self) -> None:
        check_types("", type(self).__init__, vars(self))
        for name in ("seeds", "resamples"):
            if getattr(self, name) < 1:
                raise SettingError(f"must be at least 1, got {getattr(self, name)}", parameter=name)
        if not self.data or len(set(self.data)) < len(self.data):
            raise SettingError(
                f"must be one or more different datasets, got {', '.join(self.data) or 'none'}", parameter="data"
            )

    def config(self, data: str, loss: str, seed: int) -> RunConfig:
        """The settings of one run."""
        changes: dict[str, Any] = {"data": data, "loss": loss, "seed": seed, "backbone": self.backbone}
        if self.epochs is not None:
            changes["epochs"] = self.epochs
        return build_config(**{**read_recipe(self.recipe)[1], **changes})

    def record(self) -> dict[str, Any]:
        """The settings as plain data, with the epochs of the recipe."""
        epochs = self.config(self.data[0], "ce", 1).training.epochs
        return {**asdict(self), "data": list(self.data), "epochs": epochs}
