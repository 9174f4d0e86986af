"""The kinds of errors that calprompt raises for a user's mistake; `CalpromptError`, a ValueError, catches them all.

Every message says what was wrong, what was expected and what to do. A parameter stands in it as a `Parameter`, so that
Python shows `skip_bad=True` and the command line `--skip-bad`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Parameter:
    """A parameter in a message, with the value to give it.

    >>> str(Parameter("skip_bad", True)), Parameter("skip_bad", True).spelled({"skip_bad": "--skip-bad"})
    ('skip_bad=True', '--skip-bad')
    """

    name: str  # in Python
    value: object = None  # that is suggested; None to name only the parameter
    command: str | None = None  # which has it as a flag, if it is not the one that was called

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"

    def spelled(self, flags: Mapping[str, str]) -> str:
        """As the command line spells it, if it is one of its flags."""
        flag = flags.get(self.name)
        if self.command is not None:
            flag = f"--{self.name.replace('_', '-')}"
        if flag is None:
            return str(self)
        return flag if self.value is None or self.value is True else f"{flag} {self.value}"


class Message:
    """A message made of pieces, some of which are parameters."""

    args: tuple[object, ...]

    def __init__(self, *pieces: object, parameter: str | None = None) -> None:
        super().__init__(*((Parameter(parameter), " ", *pieces) if parameter is not None else pieces))

    @property
    def parameter(self) -> str | None:
        """The parameter that the message is about, if it begins with one."""
        first = self.args[0] if self.args else None
        return first.name if isinstance(first, Parameter) else None

    def __str__(self) -> str:
        return "".join(map(str, self.args))

    def spelled(self, flags: Mapping[str, str]) -> str:
        """The message with flags in place of parameters."""
        return "".join(
            each.spelled(flags) if isinstance(each, Message | Parameter) else str(each) for each in self.args
        )

    def rename(self, **names: str) -> None:
        """Change the names of parameters, for a caller that calls them otherwise."""
        self.args = tuple(
            replace(each, name=names.get(each.name, each.name)) if isinstance(each, Parameter) else each
            for each in self.args
        )


class CalpromptError(Message, ValueError):
    """A mistake in what the user gave: a file, a name, a value or an option.

    >>> error = SettingError("must be above 0, got -1", parameter="lr")
    >>> str(error), error.parameter, error.spelled({"lr": "--lr"})
    ('lr must be above 0, got -1', 'lr', '--lr must be above 0, got -1')
    """


class CalpromptWarning(Message, UserWarning):
    """Something that the user should know, and that keeps nothing from being done."""


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
        name: The image, if known.
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
