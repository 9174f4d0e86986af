"""Options of a prediction, in the address of a request or in the fields of its form."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query

from calprompt.errors import SettingError
from calprompt.serve.engine import TOP, Options
from calprompt.serve.problems import ProblemError, problem_of
from calprompt.serve.served_model import MOST_CHARACTERS

Coverage = Annotated[float | None, Query(ge=0, le=1, description="Add the prediction set of this coverage.")]
PerClass = Annotated[bool, Query(description="Of sets whose coverage holds for each class by itself.")]
Threshold = Annotated[float | None, Query(ge=0, le=1, description="Call answers below this unsure.")]
Classes = Annotated[list[str], Query(description="Instead of the model's own classes; promises are withdrawn.")]
Top = Annotated[int, Query(ge=1, le=100_000, description="How many probabilities to give.")]


def options_in_address(
    coverage: Coverage = None,
    per_class: PerClass = False,
    min_confidence: Threshold = None,
    classes: Classes = [],  # noqa: B006
    top: Top = TOP,
) -> Options:
    """Options from the address of a request; FastAPI describes and checks them by this signature."""
    return Options(coverage, per_class, min_confidence, tuple(classes), top)


def options_of(fields: dict[str, list[str]], given: Options) -> Options:
    """Options from the fields of a form, in the place of those in the address."""
    found: dict[str, Any] = {}
    for name, texts in fields.items():
        if name == "classes":
            if any(len(text) > MOST_CHARACTERS for text in texts):
                raise ProblemError(422, f"classes must be names of {MOST_CHARACTERS} characters at most")
            found[name] = tuple(texts)
        elif name == "per_class":
            found[name] = flag(name, texts[-1])
        elif name in ("coverage", "min_confidence", "top"):
            try:
                found[name] = int(texts[-1]) if name == "top" else float(texts[-1])
            except ValueError:
                raise ProblemError(422, f"{name} must be a number, got {texts[-1][:50]!r}") from None
        else:
            raise ProblemError(
                422, f"there is no option {name[:50]!r}; there are coverage, per_class, min_confidence, classes and top"
            )
    try:
        return Options(**{**vars(given), **found})
    except SettingError as error:
        raise problem_of(error) from error


def flag(name: str, text: str) -> bool:
    """True or false, as the field of a form has it."""
    if text.lower() not in ("true", "false", "1", "0"):
        raise ProblemError(422, f"{name} must be true or false, got {text[:50]!r}")
    return text.lower() in ("true", "1")


InAddress = Annotated[Options, Depends(options_in_address)]
