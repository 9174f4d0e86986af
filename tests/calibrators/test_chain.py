"""Chains of calibrators and how calibrators are written."""

from __future__ import annotations

import pytest
import torch

from calibrators.drawn import complete, drawn
from calprompt.calibrators import Chain, DistanceAware, Isotonic, StoredLogits, Temperature, parse
from calprompt.errors import CalpromptError


def test_each_step_is_fitted_on_the_output_of_the_previous_one() -> None:
    val, test = complete(*drawn(0)), complete(*drawn(1))
    chain = parse("dac -> temperature -> isotonic").fit(val)
    first = DistanceAware()
    second = Temperature().fit(first(val), val.labels)
    third = Isotonic().fit(second(first(val)), val.labels)
    assert torch.equal(chain(test), third(second(first(test))))


def test_spellings_of_a_chain_agree() -> None:
    record = complete(*drawn(0))
    ways = ["temperature->dac(k=2)", ["temperature", "dac(k=2)"], ["temperature", DistanceAware(k=2)]]
    given = [parse(way).fit(record)(record) for way in ways]
    assert torch.equal(given[0], given[1])
    assert torch.equal(given[0], given[2])
    assert parse(ways[0]).name == "temperature -> dac"


@pytest.mark.parametrize(
    ("spec", "keeps_argmax", "novel"),
    [
        ("temperature -> dac", True, True),
        ("temperature -> histogram", False, True),
        ("isotonic -> vector", False, False),
    ],
)
def test_promises_are_those_all_keep(spec: str, keeps_argmax: bool, novel: bool) -> None:
    chain = parse(spec)
    assert (chain.keeps_argmax, chain.novel) == (keeps_argmax, novel)


def test_the_fit_needs_nothing_for_what_comes_after_the_last_fitted_one() -> None:
    logits, labels = drawn(0)
    chain = parse("temperature -> dac").fit(logits, labels)
    assert torch.equal(
        chain(complete(logits, None)), parse("temperature -> dac").fit(complete(logits, labels))(complete(logits, None))
    )
    with pytest.raises(CalpromptError, match="fitting the calibrator 'dac -> temperature' needs text"):
        parse("dac -> temperature").fit(StoredLogits(logits, labels))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("temprature -> dac", "unknown calibrator 'temprature'. Did you mean 'temperature'"),
        ("dac(neighbours=3)", "unknown option of calibrator 'dac': 'neighbours'"),
        ("dac(k='many')", "option of calibrator 'dac': k must be a whole number, got 'many'"),
        ("dac(3)", "cannot read the calibrator"),
        ("temperature ->", "cannot read the calibrator ''"),
        ("", "cannot read the calibrator ''"),
        ("dac(k=open('x'))", "cannot read the calibrator"),
        ([], "at least one calibrator"),
    ],
)
def test_bad_specs_are_refused(spec: str, says: str) -> None:
    with pytest.raises(CalpromptError, match=says.replace("(", r"\(")):
        parse(spec)


def test_states_of_another_chain_are_refused() -> None:
    state = parse("temperature -> isotonic").fit(*drawn(0)).state()
    with pytest.raises(CalpromptError, match="has 3 steps, got the states of 2"):
        parse("temperature -> isotonic -> dac").restore(state)
    with pytest.raises(CalpromptError, match=r"'isotonic' learns .* got \['temperature'\]"):
        Chain([Isotonic(), Temperature()]).restore(state)
