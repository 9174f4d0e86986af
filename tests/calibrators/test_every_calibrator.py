"""What holds for every calibrator: its declared promises, finite probabilities, plain state, and clear refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from calibrators.drawn import complete, drawn
from calprompt import calibrators
from calprompt.calibrators import Calibrator, StoredLogits
from calprompt.errors import CalpromptError

PROMISES = {  # keeps_argmax, novel
    "dac": (True, True),
    "histogram": (False, True),
    "isotonic": (True, True),
    "sals": (True, True),
    "temperature": (True, True),
    "temperature_fixed": (True, True),
    "temperature_sgd": (True, True),
    "vector": (False, False),
}
CHAINS = ["temperature -> dac", "histogram -> isotonic", "dac -> sals", "isotonic -> vector(ridge=0.01)"]
every = pytest.mark.parametrize("spec", [*calibrators.available(), *CHAINS])
few = settings(max_examples=25)


def test_promises_are_the_documented_ones() -> None:
    kinds = {name: calibrators.get(name) for name in calibrators.available()}
    assert {name: (kind.keeps_argmax, kind.novel) for name, kind in kinds.items()} == PROMISES


@every
class TestEvery:
    @few
    @given(seed=st.integers(0, 10_000), classes=st.integers(2, 12), scale=st.floats(0.01, 50), n=st.integers(1, 40))
    def test_probabilities_and_promises(self, spec: str, seed: int, classes: int, scale: float, n: int) -> None:
        val = complete(*drawn(seed, n=50, classes=classes, scale=scale), seed=seed)
        test = complete(*drawn(seed + 1, n=n, classes=classes, scale=scale), seed=seed)
        calibrator = fitted_or_none(spec, val)
        if calibrator is None:
            return
        for record in (val, replace(test, labels=None)):
            given = calibrator(record)
            assert given.dtype == torch.float64
            assert given.shape == record.logits.shape
            assert bool(torch.isfinite(given).all())
            torch.testing.assert_close(given.softmax(dim=1).sum(dim=1), torch.ones(len(given), dtype=torch.float64))
            if calibrator.keeps_argmax:
                assert torch.equal(given.argmax(dim=1), record.logits.argmax(dim=1))

    def test_novel_ones_take_other_classes_and_the_others_refuse(self, spec: str) -> None:
        calibrator = calibrators.parse(spec).fit(complete(*drawn(0)))
        novel = complete(drawn(1, classes=9)[0], None)
        if calibrator.novel:
            assert calibrator(novel).shape == (60, 9)
        else:
            with pytest.raises(CalpromptError, match="fitted on 5 classes and cannot be applied to 9"):
                calibrator(novel)

    def test_images_are_calibrated_one_by_one(self, spec: str) -> None:
        calibrator, test = calibrators.parse(spec).fit(complete(*drawn(0))), complete(*drawn(1))
        part = replace(
            test,
            logits=test.logits[7:9],
            labels=None,
            zero_shot_logits=test.zero_shot_logits[7:9],  # type: ignore[index]
        )
        torch.testing.assert_close(calibrator(part), calibrator(test)[7:9])
        none = replace(part, logits=test.logits[:0], zero_shot_logits=test.logits[:0])
        assert calibrator(none).shape == (0, 5)

    def test_precision_of_the_stored_logits_does_not_change_the_result(self, spec: str) -> None:
        half = complete(*drawn(0))
        half = replace(half, logits=half.logits.half())
        double = replace(half, logits=half.logits.double())
        ours = [calibrators.parse(spec).fit(record)(record) for record in (half, double)]
        torch.testing.assert_close(*ours)

    def test_state_goes_through_json(self, spec: str) -> None:
        record = complete(*drawn(0))
        calibrator = calibrators.parse(spec).fit(record)
        again = calibrators.parse(spec).restore(json.loads(json.dumps(calibrator.state())))
        assert torch.equal(again(record), calibrator(record))

    def test_unfitted_is_refused_or_has_nothing_to_fit(self, spec: str) -> None:
        calibrator, record = calibrators.parse(spec), complete(*drawn(0))
        if calibrator.learns:
            with pytest.raises(CalpromptError, match=r"fit the .* calibrator on validation logits before applying it"):
                calibrator(record)
        else:
            assert torch.equal(calibrator(record), calibrators.parse(spec).fit(record)(record))

    def test_a_failed_fit_leaves_no_old_one(self, spec: str) -> None:
        record = complete(*drawn(0))
        calibrator = calibrators.parse(spec).fit(record)
        if calibrator.learns:
            with pytest.raises(CalpromptError, match="at least one image"):
                calibrator.fit(cut(record, 0))
            with pytest.raises(CalpromptError, match="before applying it"):
                calibrator(record)

    def test_missing_fields_are_named(self, spec: str) -> None:
        calibrator, record = calibrators.parse(spec).fit(complete(*drawn(0))), complete(*drawn(1))
        for name in calibrator.needs:
            with pytest.raises(CalpromptError, match=rf"needs {name} \(.*StoredLogits\(\.\.\., {name}=\.\.\.\)"):
                calibrator(replace(record, **{name: None}))  # type: ignore[arg-type]
        others = {field.name: None for field in fields(StoredLogits) if field.name not in ("logits", *calibrator.needs)}
        assert torch.equal(calibrator(replace(record, **others)), calibrator(record))  # type: ignore[arg-type]
        if calibrator.learns:
            with pytest.raises(CalpromptError, match="needs labels"):
                calibrator.fit(replace(record, labels=None))

    def test_input_is_left_alone(self, spec: str) -> None:
        record = complete(*drawn(0))
        before = record.logits.clone()
        record.logits.requires_grad_()
        given = calibrators.parse(spec).fit(record)(record)
        assert not given.requires_grad
        assert torch.equal(record.logits.detach(), before)


# name of the trouble: what happens to a record, and what each calibrator then says; "" is a result that is tested below
RIGHT, WRONG = "all 60 validation images are classified right", "all 60 validation images are classified wrong"
FLAT = "same logit for all classes"
CLOSED = {"dac": "", "temperature_fixed": ""}  # nothing is fitted, and any logits will do
DEGENERATE: dict[str, tuple[Callable[[StoredLogits], StoredLogits], dict[str, str]]] = {
    "one class": (
        lambda r: complete(r.logits[:, :1], torch.zeros_like(r.labels)),
        dict.fromkeys(PROMISES, "two classes") | CLOSED | {"sals": "the same zero-shot logit for every class"},
    ),
    "all right": (
        lambda r: replace(r, labels=r.logits.argmax(dim=1)),
        dict.fromkeys(PROMISES, RIGHT) | CLOSED | {"sals": "", "temperature_sgd": ""},
    ),
    "all wrong": (
        lambda r: replace(r, labels=r.logits.argmin(dim=1)),
        dict.fromkeys(PROMISES, WRONG)
        | CLOSED
        | {"sals": "", "temperature_sgd": "", "temperature": "no temperature fits.*Check the labels"},
    ),
    "constant logits": (
        lambda r: replace(r, logits=torch.full_like(r.logits, 3.0)),
        dict.fromkeys(PROMISES, FLAT) | CLOSED | {"sals": "same logit for every class"},
    ),
    "constant zero-shot logits": (
        lambda r: replace(r, zero_shot_logits=torch.full_like(r.logits, 3.0)),
        dict.fromkeys(PROMISES, "") | {"sals": "image 0 has the same zero-shot logit for every class"},
    ),
    "empty validation set": (
        lambda r: cut(r, 0),
        dict.fromkeys(PROMISES, r"at least one image and two classes, got \(0, 5\)") | CLOSED | {"sals": ""},
    ),
    "one image": (
        lambda r: cut(r, 1),
        {"temperature": "no temperature fits", "temperature_sgd": "", "sals": ""}
        | CLOSED
        | dict.fromkeys(("histogram", "isotonic", "vector"), "all 1 validation images"),
    ),
    "NaN logits": (
        lambda r: replace(r, logits=r.logits.index_fill(0, torch.tensor([3]), float("nan"))),
        dict.fromkeys(PROMISES, "logits must be finite, got 5 that are not"),
    ),
    "labels of other classes": (
        lambda r: replace(r, labels=r.labels + 1),
        dict.fromkeys(PROMISES, "labels must lie in 0..4 for 5 classes"),
    ),
}


@pytest.mark.parametrize("trouble", DEGENERATE)
@pytest.mark.parametrize("name", calibrators.available())
def test_degenerate_input_is_refused_or_harmless(name: str, trouble: str) -> None:
    spoil, says = DEGENERATE[trouble]
    if says[name]:
        with pytest.raises(CalpromptError, match=says[name]):
            apply_to_spoiled(name, spoil)
        return
    record, given = apply_to_spoiled(name, spoil)
    assert bool(torch.isfinite(given).all())
    if calibrators.get(name).keeps_argmax:
        assert torch.equal(given.argmax(dim=1), record.logits.argmax(dim=1))


def apply_to_spoiled(name: str, spoil: Callable[[StoredLogits], StoredLogits]) -> tuple[StoredLogits, Tensor]:
    record = spoil(complete(*drawn(0)))
    return record, calibrators.parse(name).fit(record)(record)


def cut(record: StoredLogits, n: int) -> StoredLogits:
    """The first n images."""
    assert record.labels is not None
    assert record.zero_shot_logits is not None
    return replace(
        record, logits=record.logits[:n], labels=record.labels[:n], zero_shot_logits=record.zero_shot_logits[:n]
    )


def fitted_or_none(spec: str, record: StoredLogits) -> Calibrator | None:
    """Fitted, unless the draw is one of those that are refused."""
    try:
        return calibrators.parse(spec).fit(record)
    except CalpromptError as error:
        assert any(text in str(error) for text in ("no temperature fits", "images are classified"))  # noqa: PT017
        return None


class Reversed(Calibrator):
    """Promises what it does not keep."""

    keeps_argmax = True
    novel = True

    def apply(self, record: StoredLogits) -> Tensor:
        return -record.logits.double()


class Flattened(Reversed):
    """Keeps the order, up to rounding."""

    def apply(self, record: StoredLogits) -> Tensor:
        return record.logits.double().clamp(max=1.0)


def test_calibrators_that_change_predictions_are_refused() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    with pytest.raises(CalpromptError, match="'Reversed' declares that it keeps predictions"):
        Reversed()(logits)
    given = Flattened()(logits)
    assert given.argmax().item() == 2
    torch.testing.assert_close(given, torch.tensor([[0.0, 1.0, 1.0]], dtype=torch.float64))


class Cut(Calibrator):
    """Promises nothing, and forgets a class."""

    def apply(self, record: StoredLogits) -> Tensor:
        return record.logits.double()[:, 1:]


def test_logits_of_another_shape_are_refused() -> None:
    with pytest.raises(CalpromptError, match=r"'Cut' must give logits \(1, 3\) as it was given, got \(1, 2\)"):
        Cut()(torch.tensor([[0.0, 1.0, 2.0]]))


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(CalpromptError, match=r"unknown calibrator 'temprature'\. Did you mean 'temperature'"):
        calibrators.get("temprature")
