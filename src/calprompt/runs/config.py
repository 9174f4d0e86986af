"""All settings of a run, checked when they are made, and recipes: settings as they were published.

# first what it is, then the command that runs it
tuner: coop
options: {context: 16, position: middle}
loss: tcpt
epochs: 50

A recipe sets what it names; everything else keeps the default of `RunConfig`, and the command line goes over both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from calprompt.class_names import fill_template
from calprompt.data.splits import OWN, normalized_validation, parse_validation
from calprompt.errors import CalpromptError, SettingError
from calprompt.files import canonical_json
from calprompt.hardware import check_device
from calprompt.registry import check_types, load_extension, unknown
from calprompt.text import is_utf8, parse_problem, slug, visible
from calprompt.training_config import TrainingConfig

LATER_SETTINGS = {"val_shots": None, "validation": OWN, "anchor": False}  # that records of earlier versions lack
PROTOCOLS = ("base-to-novel", "few-shot")
DTYPES = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run.

    Attributes:
        backbone: Open_clip's model/tag, hf-hub:owner/name, a file or folder of weights, or pocket.
        data: Folder, CSV, JSON, .safetensors, or a name of 'calprompt data list'.
        tuner: Which prompts are learned and how; see 'calprompt list'.
        options: Options of the tuner, such as context=4.
        loss: A name or a sum such as 'ce + 5*moments'.
        protocol: base-to-novel trains on the first half of the classes and tests on both; few-shot takes all classes.
        shots: Training images per class; all of them if None.
        val_shots: Validation images per class; as many as shots but four at most, or all with all shots, if None.
        validation: Where they come from: own, train:0.2 to keep that share of the training images, or test.
        anchor: Fit the logit scale of the untuned model on the training images first, and tune with that scale.
        training: How prompts are trained.
        views: Random crops of every training image, taken in turn by the epochs; a new one in every epoch if None. With
            0, images are trained on as they are tested.
        crop: Smallest share of an image's area in a crop.
        template: Sentence of the untuned model; the dataset's for this tuner, or 'a photo of a {}.', if None.
        chunk: Classes encoded at a time, to save memory; all of them if None.
        device: Where to compute: cpu, cuda, cuda:1, …
        dtype: Precision of the backbone's weights: float32, float16, bfloat16 or float64.
        backbone_config: Open_clip model name or JSON config, for a weights file that has none.
        imports: Python files of your own that register tuners, losses or metrics.
        root: Folder that has the datasets, or the images of a table.
        classes: File with the order and names of the classes, and their template.
        base: File with the names of the base classes, one per line; the first half if None.
        exif: Turn images as their EXIF data say.
        skip_bad: Leave out images that cannot be read, instead of stopping with a list of them.
    """

    backbone: str
    data: str
    tuner: str = "coop"
    options: Mapping[str, Any] = field(default_factory=dict)
    loss: str = "tcpt"
    protocol: str = "base-to-novel"
    shots: int | None = 16
    val_shots: int | None = None
    validation: str = OWN
    anchor: bool = False
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
        check_types("", type(self).__init__, vars(self))
        for name, value in vars(self).items():
            if isinstance(value, str) and not is_utf8(value):
                raise SettingError(f"{name} is not UTF-8: {visible(value)}; a file or folder has to be renamed")
        places = tuple(str(Path(path).expanduser().resolve()) for path in self.imports)
        object.__setattr__(self, "imports", places)  # a run is used from other folders than the one it was made in
        for path in places:
            load_extension(path)
        if self.backbone_config is not None and Path(self.backbone_config).expanduser().is_file():
            object.__setattr__(self, "backbone_config", str(Path(self.backbone_config).expanduser().resolve()))
        check_values(vars(self))
        object.__setattr__(self, "validation", normalized_validation(self.validation))
        self._check_methods()

    def _check_methods(self) -> None:
        """Raise for a tuner, its options or a loss that does not exist."""
        from calprompt.losses import Objective
        from calprompt.tuners.base import check_options

        for option in ("template", "seed"):
            if option in self.options:
                raise SettingError(f"{option} is a setting of the run, not an option of tuner {self.tuner!r}")
        check_options(self.tuner, self.options)
        try:
            canonical_json(dict(self.options))
        except (TypeError, ValueError) as error:
            raise SettingError(f"must be plain values, got {dict(self.options)}", parameter="options") from error
        Objective.parse(self.loss)

    @property
    def seed(self) -> int:
        """Seed of shots, prompts, batches and what losses draw; crops are drawn from the images alone."""
        return self.training.seed

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "options": dict(self.options), "imports": list(self.imports)}


def check_values(settings: Mapping[str, Any]) -> None:
    """Raise for values that no run can have, among settings of the right types; needs no torch."""
    for name, least in (("shots", 1), ("val_shots", 0), ("views", 0), ("chunk", 1)):
        value = settings.get(name)
        if value is not None and value < least:
            raise SettingError(f"must be at least {least}, got {value}", parameter=name)
    check_device(settings.get("device", "cpu"))
    parse_validation(settings.get("validation", OWN))
    crop = settings.get("crop", 1.0)
    if not 0 < crop <= 1:
        raise SettingError(f"must be a share of the image's area, above 0 and at most 1, got {crop}", parameter="crop")
    if settings.get("template") is not None:
        fill_template(settings["template"], "class")
    if settings.get("protocol", PROTOCOLS[0]) not in PROTOCOLS:
        raise unknown("protocol", settings["protocol"], PROTOCOLS)
    if settings.get("dtype", DTYPES[0]) not in DTYPES:
        raise SettingError(f"must be one of {', '.join(DTYPES)}; got {settings['dtype']!r}", parameter="dtype")


@dataclass(frozen=True)
class Target:
    """What a run is evaluated on: the test images of a dataset.

    Attributes:
        data: Folder, CSV, JSON, .safetensors, or a name of 'calprompt data list'.
        root: Folder that has the datasets, or the images of a table.
        classes: File with the order and names of the classes.
        name: What to call the results, which replace others of that name; the dataset's name if None.
        template: Sentence of the untuned model; the run's for its own classes, else the dataset's, if None.
        all_classes: Evaluate all classes at once, even if they are the run's.
        exif: Turn images as their EXIF data say.
        skip_bad: Leave out images that cannot be read.
    """

    data: str
    root: str | None = None
    classes: str | None = None
    name: str | None = None
    template: str | None = None
    all_classes: bool = False
    exif: bool = False
    skip_bad: bool = False

    def __post_init__(self) -> None:
        if self.template is not None:
            fill_template(self.template, "class")
        if self.name is not None and not slug(self.name):
            raise SettingError(f"must have letters or digits, got {self.name!r}", parameter="name")


TRAINING_SETTINGS = [field.name for field in fields(TrainingConfig)]
RUN_SETTINGS = [field.name for field in fields(RunConfig) if field.name != "training"]


def available() -> list[str]:
    folder = files("calprompt") / "recipes"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def read_recipe(name: str) -> tuple[str, dict[str, Any]]:
    """The description and settings of a recipe; `name` is one of the package's or the path of a YAML file."""
    if name in available():
        text = (files("calprompt") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    elif Path(name).suffix in (".yaml", ".yml"):
        try:
            text = Path(name).expanduser().read_text(encoding="utf-8")
        except OSError as error:
            raise SettingError(f"cannot read recipe {name}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise SettingError(f"recipe {name} is not text in UTF-8: {error.reason} at byte {error.start}") from error
    else:
        raise unknown("recipe", name, available())
    try:
        settings = yaml.load(text, Reader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SettingError(f"recipe {name} is not YAML: {parse_problem(error)}") from error
    if not isinstance(settings, dict):
        raise SettingError(f"recipe {name} must be settings such as 'tuner: coop', got {type(settings).__name__}")
    for key in settings:
        if key not in RUN_SETTINGS + TRAINING_SETTINGS:
            raise unknown(f"setting in recipe {name}:", str(key), RUN_SETTINGS + TRAINING_SETTINGS)
    if isinstance(settings.get("imports"), list):
        settings["imports"] = tuple(settings["imports"])
    for kind in (RunConfig, TrainingConfig):
        check_types(f"recipe {name}: setting", kind.__init__, settings)
    head = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
    return " ".join(line for line in head if not line.startswith("calprompt ")), settings


def build_config(**settings: Any) -> RunConfig:
    """`RunConfig` from flat settings, those of training among them."""
    for name in settings:
        if name not in RUN_SETTINGS + TRAINING_SETTINGS:
            raise unknown("setting", name, RUN_SETTINGS + TRAINING_SETTINGS)
    lacking = [name for name in ("backbone", "data") if name not in settings]
    if lacking:
        raise SettingError(f"the setting {lacking[0]} is missing; every run has a backbone and data")
    training = {name: settings.pop(name) for name in TRAINING_SETTINGS if name in settings}
    try:
        return RunConfig(**settings, training=TrainingConfig(**training))
    except TypeError as error:
        raise SettingError(f"these settings do not fit together: {error}") from error


class Reader(yaml.SafeLoader):
    """YAML as most people write it: 2e-3 is a number, which YAML 1.1 takes for text because it has no point."""


Reader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def settings_record(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings as a run's record has them; None if they are not even of the right names and types."""
    training = {name: settings[name] for name in TRAINING_SETTINGS if name in settings}
    usual = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(RunConfig)
        if (each.default, each.default_factory) != (MISSING, MISSING)
    }
    given = {name: settings[name] for name in RUN_SETTINGS if name in settings}
    record: dict[str, Any] = {**usual, **given, "training": asdict(TrainingConfig(**training))}
    record["imports"] = [str(Path(path).expanduser().resolve()) for path in record["imports"]]
    config = record["backbone_config"]
    if isinstance(config, str) and Path(config).expanduser().is_file():
        record["backbone_config"] = str(Path(config).expanduser().resolve())
    try:
        record["validation"] = normalized_validation(record["validation"])
        return dict(json.loads(json.dumps(record, allow_nan=False)))
    except (TypeError, ValueError, AttributeError, CalpromptError):
        return None
