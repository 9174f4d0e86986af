"""All settings of a run, checked when they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from calprompt import tuners
from calprompt.clip.tokens import fill
from calprompt.errors import CalpromptError
from calprompt.extensions import load_extension
from calprompt.files import canonical_json
from calprompt.losses import Objective
from calprompt.options import check_types
from calprompt.registry import unknown
from calprompt.train import TrainingConfig
from calprompt.tuners.base import option_names

PROTOCOLS = ("base-to-novel", "few-shot")
DTYPES = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run.

    backbone, backbone_config  as `load_backbone` takes them
    data, root, classes, base  as `load_dataset` takes them: a folder, a table, a split file, a name of the catalogue
    exif                       turn images as their EXIF tags say
    skip_bad                   go on without images that cannot be read, instead of stopping with a list of them
    options                    of the tuner
    protocol                   base-to-novel: train on the first half of the classes, test on both halves;
                               few-shot: train and test on all of them
    shots                      training images a class; None: all
    views                      random crops of every training image, taken in turn by the epochs; None: a new one in
                               every epoch, as the public code draws them
    crop                       the smallest share of an image's area in them
    chunk                      classes encoded at a time, to save memory; None: all
    template                   of the untuned model; None: the dataset's for this tuner, or "a photo of a {}."
    imports                    Python files of one's own that register tuners, losses or metrics
    """

    backbone: str
    data: str
    tuner: str = "coop"
    options: Mapping[str, Any] = field(default_factory=dict)
    loss: str = "tcpt"
    protocol: str = "base-to-novel"
    shots: int | None = 16
    training: TrainingConfig = field(default_factory=TrainingConfig)
    views: int | None = 8
    crop: float = 0.08
    template: str | None = None
    chunk: int | None = None
    device: str = "cpu"
    dtype: str = "float32"
    backbone_config: str | None = None
    imports: tuple[str, ...] = ()
    root: str | None = None
    classes: str | None = None
    base: str | None = None
    exif: bool = False
    skip_bad: bool = False

    def __post_init__(self) -> None:
        check_types("setting", type(self).__init__, vars(self))
        places = tuple(str(Path(path).expanduser().resolve()) for path in self.imports)
        object.__setattr__(self, "imports", places)  # a run is used from other folders than the one it was made in
        for path in places:
            load_extension(path)
        if self.backbone_config is not None and Path(self.backbone_config).expanduser().is_file():
            object.__setattr__(self, "backbone_config", str(Path(self.backbone_config).expanduser().resolve()))
        kind = tuners.get(self.tuner)
        for option in ("template", "seed"):
            if option in self.options:
                raise CalpromptError(f"{option} is a setting of the run, not an option of tuner {self.tuner!r}")
        for option in self.options:
            if option not in option_names(kind):
                raise unknown(f"option of tuner {self.tuner!r}:", option, option_names(kind))
        for base in kind.__mro__:
            if "__init__" in vars(base):
                check_types(f"option of tuner {self.tuner!r}:", vars(base)["__init__"], self.options)
        try:
            canonical_json(dict(self.options))
        except (TypeError, ValueError) as error:
            raise CalpromptError(f"options must be plain values, got {dict(self.options)}") from error
        Objective.parse(self.loss)
        for name in ("shots", "views", "chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise CalpromptError(f"{name} must be at least 1, got {value}")
        if self.template is not None:
            fill(self.template, "class")
        if self.protocol not in PROTOCOLS:
            raise unknown("protocol", self.protocol, PROTOCOLS)
        if self.dtype not in DTYPES:
            raise CalpromptError(f"dtype must be one of {', '.join(DTYPES)}; got {self.dtype!r}")

    @property
    def seed(self) -> int:
        """Of everything drawn in the run: shots, prompts, batches, what losses draw. Views are the images' own."""
        return self.training.seed

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "options": dict(self.options), "imports": list(self.imports)}
