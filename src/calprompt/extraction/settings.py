"""What features are wanted: of which images, under which backbones. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from calprompt.data.listing import SPLITS
from calprompt.errors import SettingError
from calprompt.options import check_types
from calprompt.registry import unknown
from calprompt.runs.config import check_values
from calprompt.training_config import AUTOCAST


@dataclass(frozen=True)
class ExtractionSettings:
    """What features are wanted; names and defaults are those of `RunConfig` and `TrainingConfig`.

    Attributes:
        data: Folder, CSV, JSON, .safetensors, or a name of 'calprompt data list'.
        backbones: Each as `RunConfig.backbone`.
        splits: Which images: train, val, test.
        views: Random crops of every training image; the view for evaluation comes besides.
        crop: Smallest share of an image's area in a crop.
        device: Where to compute: cpu, cuda, cuda:1, …
        dtype: Of the backbone's weights: float32, float16, bfloat16 or float64.
        autocast: What the towers run in: bfloat16 or float16; their own dtype if None.
        backbone_config: Open_clip model name or JSON config, for a weights file that has none.
        root: Folder that has the datasets, or the images of a table.
        classes: File with the order and names of the classes, and their template.
        exif: Turn images as their EXIF data say.
    """

    data: str
    backbones: tuple[str, ...]
    splits: tuple[str, ...] = SPLITS
    views: int = 8
    crop: float = 0.08
    device: str = "cpu"
    dtype: str = "float32"
    autocast: str | None = None
    backbone_config: str | None = None
    root: str | None = None
    classes: str | None = None
    exif: bool = False

    def __post_init__(self) -> None:
        check_types("", type(self).__init__, vars(self))
        check_values(vars(self))
        if not self.backbones or not self.splits:
            raise SettingError("at least one backbone and one split are needed")
        if self.autocast not in (None, *AUTOCAST):
            raise SettingError(f"must be {', '.join(AUTOCAST)} or nothing, got {self.autocast!r}", parameter="autocast")
        for name in self.splits:
            if name not in SPLITS:
                raise unknown("split", name, SPLITS)
        for name, values in (("backbones", self.backbones), ("splits", self.splits)):
            if len(set(values)) < len(values):
                raise SettingError(f"{name} has something twice: {', '.join(values)}")
