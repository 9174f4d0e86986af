"""The kinds of errors that calprompt raises for a user's mistake.

Every message says what was wrong, what was expected and what to do. Messages name parameters as Python spells them
(`skip_bad=True`); the command line shows the flag instead (`--skip-bad`).

    CalpromptError           a ValueError: catch this one to catch them all
    ├── SettingError         an option or argument that does not make sense
    │   └── UnknownNameError a name that is not registered, answered with the nearest known one
    ├── NotFoundError        a file, folder, run or model that is not there
    ├── DataError            a dataset that cannot be used
    │   └── ImageError       an image that cannot be read
    ├── BackboneError        weights or a model configuration that cannot be used
    ├── DamagedFileError     a file whose contents are not what was written
    │   └── NewerFormatError written by a newer version than this one
    ├── BusyError            a folder that another process is writing to
    └── NonFiniteLossError   training that diverged
"""

from __future__ import annotations


class CalpromptError(ValueError):
    """A mistake in what the user gave: a file, a name, a value or an option."""


class SettingError(CalpromptError):
    """An option or argument that does not make sense."""


class UnknownNameError(SettingError):
    """A name that is not registered."""


class NotFoundError(CalpromptError):
    """A file, folder, run or model that is not there."""


class DataError(CalpromptError):
    """A dataset that cannot be used."""


class ImageError(DataError):
    """An image that cannot be read.

    Attributes:
        reason: What is wrong with it.
        name: Which image it is, if that is known.
    """

    def __init__(self, reason: str, name: str | None = None) -> None:
        super().__init__(reason if name is None else f"{name} ({reason})")
        self.reason, self.name = reason, name


class BackboneError(CalpromptError):
    """Weights or a model configuration that cannot be used."""


class DamagedFileError(CalpromptError):
    """A file whose contents are not what was written."""


class NewerFormatError(DamagedFileError):
    """A file written by a newer version of calprompt than this one."""


class BusyError(CalpromptError):
    """A folder that another process is writing to."""


class NonFiniteLossError(CalpromptError):
    """The loss or a gradient stopped being a finite number; the prompts are those of the last good step."""
