"""Chains of calibrators, such as `temperature -> dac`: each is fitted on the logits that the previous one returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from calprompt.calibrators.base import Calibrator, StoredLogits, calibrators
from calprompt.errors import SettingError

ARROW = "->"


class Chain(Calibrator):
    """Calibrators one after another. A chain promises what all of them promise and needs what any of them needs.

    Args:
        steps: The calibrators, in the order they are applied.

    >>> chain = parse("temperature -> dac(k=3)")
    >>> chain.keeps_argmax, chain.novel, chain.needs
    (True, True, ('text', 'frozen_text', 'base_text', 'base_frozen_text'))
    """

    def __init__(self, steps: Sequence[Calibrator]) -> None:
        if not steps:
            raise SettingError("a chain needs at least one calibrator")
        self.steps = tuple(steps)
        self.keeps_argmax = all(step.keeps_argmax for step in steps)
        self.novel = all(step.novel for step in steps)
        self.needs = tuple(dict.fromkeys(field for step in steps for field in step.needs))
        learners = [n for n, step in enumerate(steps, start=1) if step.learns]
        self.fitted = max(learners, default=0)  # how many steps the fit goes through: up to the last learner
        self.learns = ("states",) if learners else ()

    @property
    def name(self) -> str:
        return f" {ARROW} ".join(step.name for step in self.steps)

    @property
    def states(self) -> list[dict[str, Any]] | None:
        """What each step learned; None before the fit."""
        states = [step.state() for step in self.steps]
        return None if any(value is None for state in states for value in state.values()) else states

    @property
    def fit_needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(field for step in self.steps[: self.fitted] for field in step.needs))

    def forget(self) -> None:
        for step in self.steps:
            step.forget()

    def learn(self, record: StoredLogits) -> None:
        *before, last = self.steps[: self.fitted]
        for step in before:
            record = replace(record, logits=step.fit(record)(record))
        last.fit(record)

    def apply(self, record: StoredLogits) -> Tensor:
        for step in self.steps:
            record = replace(record, logits=step(record))
        return record.logits

    def export(self, record: StoredLogits) -> list[dict[str, Any]]:
        return [exported for step in self.steps for exported in step.export(record)]

    def restore(self, state: Mapping[str, Any]) -> Chain:
        self.forget()
        states = state.get("states") or []
        if states and len(states) != len(self.steps):
            raise SettingError(f"the chain {self.name!r} has {len(self.steps)} steps, got the states of {len(states)}")
        for step, step_state in zip(self.steps, states, strict=False):
            step.restore(step_state)
        return self


def parse(spec: str | Calibrator | Sequence[str | Calibrator]) -> Calibrator:
    """A calibrator from its name, or a chain from several.

    Args:
        spec: A name, with options in parentheses if needed; several with "->" between them; or a list of these.

    Raises:
        UnknownNameError: if there is no such calibrator or option.
        SettingError: if the text cannot be read, or an option has a wrong value.

    >>> parse("dac(k=3)"), parse("temperature").name, parse(["temperature", "dac"]).name
    (DistanceAware(k=3, threshold=0.05, divisor='neighbours'), 'temperature', 'temperature -> dac')
    """
    if isinstance(spec, Calibrator):
        return spec
    if isinstance(spec, str):
        parts = spec.split(ARROW)
        return calibrators.create(spec) if len(parts) == 1 else Chain([calibrators.create(part) for part in parts])
    return Chain([parse(step) for step in spec])
