"""A sum of weighted losses, written as it reads: `ce + margin(alpha=0.1, beta=0.01) + 5*moments`."""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import dataclass
from inspect import signature
from typing import Any

from torch import Tensor

from calprompt.errors import CalpromptError
from calprompt.losses.registry import Loss, losses
from calprompt.options import check_types
from calprompt.outputs import Outputs
from calprompt.registry import unknown

# Sums with a name. One that is also the name of a loss (mbls, penalty) means the published sum when it stands alone.
NAMED = {
    "tcpt": "ce + margin(alpha=0.1, beta=0.01) + 5*moments",  # the paper's objective, with its weights
    # what it is compared with; zs_norm, label_smoothing and focal stand for themselves
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
    "margin_orthogonality": "ce + margin + 5*orthogonality",
}


@dataclass(frozen=True)
class Term:
    """One summand: its name as written, its weight and its loss."""

    name: str
    weight: float
    loss: Loss

    def value(self, outputs: Outputs) -> Tensor:
        """The loss before its weight, a tensor with one number in it."""
        value: Any = self.loss(outputs)
        if not isinstance(value, Tensor) or value.ndim:
            what = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise CalpromptError(f"loss {self.name!r} must return a tensor of one number, such as a mean; got {what}")
        return value

    @property
    def options(self) -> dict[str, Any]:
        """The settings of the loss."""
        return dataclasses.asdict(self.loss) if dataclasses.is_dataclass(self.loss) else {}

    def __str__(self) -> str:
        defaults = {name: parameter.default for name, parameter in signature(type(self.loss)).parameters.items()}
        set_ = [f"{name}={value!r}" for name, value in self.options.items() if value != defaults.get(name)]
        weight = repr(self.weight).removesuffix(".0") + "*" if self.weight != 1 else ""
        return weight + self.name + (f"({', '.join(set_)})" if set_ else "")


@dataclass(frozen=True)
class Objective:
    """What is minimised: the terms, and whatever the tuner adds itself.

    >>> Objective.parse("ce + margin + 5*moments")
    Objective('ce + margin + 5*moments')
    """

    terms: tuple[Term, ...]

    def __call__(self, outputs: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
        """The total, and every term before its weight (the tuner's own as they are), for the history."""
        values = {term.name: term.value(outputs) for term in self.terms}
        total = sum((term.weight * values[term.name] for term in self.terms), start=outputs.logits.new_zeros(()))
        own = self.terms_of_tuner(outputs)
        for value in own.values():
            total = total + value
        return total, {**values, **own}

    def terms_of_tuner(self, outputs: Outputs) -> dict[str, Tensor]:
        """What the tuner adds, by names that none of the terms has."""
        taken = {term.name for term in self.terms}
        return {f"tuner_{name}" if name in taken else name: value for name, value in outputs.terms.items()}

    @property
    def uses_zero_shot(self) -> bool:
        """Whether a loss says that it asks for zero-shot logits, so that it pays to have them ready."""
        return any(getattr(term.loss, "uses_zero_shot", False) for term in self.terms)

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Read a sum of `name`, `name(option=value)` and `number*name`, or the name of a known sum such as `tcpt`."""
        text = text.strip()
        try:
            tree = ast.parse(NAMED.get(text, text), mode="eval").body
        except (SyntaxError, ValueError) as error:
            raise CalpromptError(f"cannot read the loss {text!r}; write it like '{NAMED['tcpt']}'") from error
        terms = tuple(_term(node, text) for node in _summands(tree))
        names = [term.name for term in terms]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise CalpromptError(f"loss {text!r} has {', '.join(sorted(repeated))} more than once; add the weights up")
        return cls(terms)

    def __str__(self) -> str:
        text = " + ".join(str(term) for term in self.terms)
        return f"1*{text}" if text in NAMED else text

    def record(self) -> list[dict[str, Any]]:
        """Every term with its weight and all its settings, as plain data."""
        return [{"name": term.name, "weight": term.weight, "options": term.options} for term in self.terms]

    def __repr__(self) -> str:
        return f"Objective({str(self)!r})"


def _summands(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_summands(node.left), *_summands(node.right)]
    return [node]


def _term(node: ast.expr, text: str) -> Term:
    weight = 1.0
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        weight, node = _number(node.left, text), node.right
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        options = {keyword.arg: _literal(keyword.value, text) for keyword in node.keywords}
        return Term(node.func.id, weight, _build(node.func.id, options))
    if isinstance(node, ast.Name):
        return Term(node.id, weight, _build(node.id, {}))
    raise CalpromptError(
        f"cannot read {ast.unparse(node)!r} in the loss {text!r}; a term is a name, a name with options in "
        f"parentheses (margin(alpha=0.1)), or a number times one of these (5*moments)"
    )


def _build(name: str, options: dict[Any, Any]) -> Loss:
    if name in NAMED and name not in losses.available():
        raise CalpromptError(f"{name} is the name of a sum and stands alone; in another, write it out: {NAMED[name]}")
    if name not in losses.available():
        raise unknown("loss", name, {*losses.available(), *NAMED})
    make = losses.get(name)
    known = signature(make).parameters
    for option in options:
        if option not in known:
            raise unknown(f"option of loss {name!r}:", str(option), known)
    check_types(f"option of loss {name!r}:", make, options)
    return make(**options)


def _literal(node: ast.expr, text: str) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise CalpromptError(f"{ast.unparse(node)!r} in the loss {text!r} is not a plain value") from error


def _number(node: ast.expr, text: str) -> float:
    value = _literal(node, text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CalpromptError(f"the weight {ast.unparse(node)!r} in the loss {text!r} is not a number")
    return float(value)
