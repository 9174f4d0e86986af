"""What a run is evaluated on afterwards, as settings. Reading their names and defaults needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from calprompt.class_names import fill_template
from calprompt.errors import SettingError
from calprompt.text import slug


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
