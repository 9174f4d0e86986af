"""A weighted sum of losses, written as text: `ce + margin(alpha=0.1, beta=0.01) + 5*moments`."""

from __future__ import annotations

import ast
import dataclasses
import math
from dataclasses import dataclass
from inspect import signature
from typing import Any

from torch import Tensor

from calprompt.errors import SettingError
from calprompt.losses.base import Loss, losses
from calprompt.outputs import Outputs
from calprompt.registry import parse_call, unknown
from calprompt.training_config import NAMED


@dataclass(frozen=True)
class Term:
    """One summand of an objective.

    Attributes:
        name: The loss as it was written.
        weight: Weight of the loss.
        loss: Called with the outputs of a step.
    """

    name: str
    weight: float
    loss: Loss

    def value(self, outputs: Outputs) -> Tensor:
        """The loss before its weight, a tensor of one number."""
        value: Any = self.loss(outputs)
        if not isinstance(value, Tensor) or value.ndim:
            what = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise SettingError(f"loss {self.name!r} must return a tensor of one number, such as a mean; got {what}")
        return value

    @property
    def options(self) -> dict[str, Any]:
        return dataclasses.asdict(self.loss) if dataclasses.is_dataclass(self.loss) else {}

    def __str__(self) -> str:
        defaults = {name: parameter.default for name, parameter in signature(type(self.loss)).parameters.items()}
        options = [f"{name}={value!r}" for name, value in self.options.items() if value != defaults.get(name)]
        weight = repr(self.weight).removesuffix(".0") + "*" if self.weight != 1 else ""
        return weight + self.name + (f"({', '.join(options)})" if options else "")


@dataclass(frozen=True)
class Objective:
    """What is minimised: the terms, and those that the tuner adds.

    >>> Objective.parse("ce + margin + 5*moments")
    Objective('ce + margin + 5*moments')
    """

    terms: tuple[Term, ...]

    def __call__(self, outputs: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Evaluate the objective."""
        values = {term.name: term.value(outputs) for term in self.terms}
        total = sum((term.weight * values[term.name] for term in self.terms), start=outputs.logits.new_zeros(()))
        added = self.terms_of_tuner(outputs)
        for value in added.values():
            total = total + value
        return total, {**values, **added}

    def terms_of_tuner(self, outputs: Outputs) -> dict[str, Tensor]:
        """What the tuner adds; a name that one of the terms has gets the prefix tuner_."""
        names = {term.name for term in self.terms}
        return {f"tuner_{name}" if name in names else name: value for name, value in outputs.terms.items()}

    @property
    def uses_zero_shot(self) -> bool:
        """Whether a loss declares that it needs zero-shot logits, so that they are worth preparing."""
        return any(getattr(term.loss, "uses_zero_shot", False) for term in self.terms)

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Read an objective.

        Args:
            text: A sum of `name`, `name(option=value)` and `number*name`, or the name of a known sum such as `tcpt`.

        Raises:
            SettingError: if the text cannot be read, or has a loss twice.
            UnknownNameError: if there is no such loss or option.
        """
        text = text.strip()
        try:
            tree = ast.parse(NAMED.get(text, text), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise SettingError(f"cannot read the loss {text!r}; write it like '{NAMED['tcpt']}'") from error
        terms = tuple(_term(node, text) for node in _summands(tree))
        names = [term.name for term in terms]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise SettingError(f"loss {text!r} has {', '.join(sorted(repeated))} more than once; add the weights up")
        return cls(terms)

    def __str__(self) -> str:
        text = " + ".join(str(term) for term in self.terms)
        return f"1*{text}" if text in NAMED else text

    def record(self) -> list[dict[str, Any]]:
        """The terms with their weights and all settings, as plain data, which is part of a run's identity.

        A setting that a loss got later, a field with the metadata `added`, is left out at its default: runs from before
        stay what they are.
        """
        return [{"name": term.name, "weight": term.weight, "options": _recorded(term)} for term in self.terms]

    def __repr__(self) -> str:
        return f"Objective({str(self)!r})"


def _recorded(term: Term) -> dict[str, Any]:
    options = term.options
    if not dataclasses.is_dataclass(term.loss):
        return options
    added = {each.name: each.default for each in dataclasses.fields(term.loss) if each.metadata.get("added")}
    return {name: value for name, value in options.items() if name not in added or value != added[name]}


def _summands(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_summands(node.left), *_summands(node.right)]
    return [node]


def _term(node: ast.expr, text: str) -> Term:
    weight = 1.0
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        weight, node = _number(node.left, text), node.right
    if not isinstance(node, ast.Name | ast.Call):
        raise SettingError(
            f"cannot read {ast.unparse(node)!r} in the loss {text!r}; a term is a name, a name with options in "
            f"parentheses (margin(alpha=0.1)), or a number times one of these (5*moments)"
        )
    call = parse_call(node, "loss")
    if call.name not in losses.available():
        if call.name in NAMED:
            raise SettingError(
                f"{call.name} is the name of a sum and must stand alone; in another sum, write its terms: "
                f"{NAMED[call.name]}"
            )
        raise unknown("loss", call.name, {*losses.available(), *NAMED})
    return Term(call.name, weight, losses.create(call))


def _number(node: ast.expr, text: str) -> float:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        value = None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SettingError(f"the weight {ast.unparse(node)!r} in the loss {text!r} is not a finite number")
    return float(value)
