"""The record of stored results: what fits together, and what is said of what does not."""

from __future__ import annotations

import pytest
import torch

from calprompt.calibrators import StoredLogits, Temperature
from calprompt.errors import CalpromptError

LOGITS = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"logits": torch.zeros(4)}, r"logits must be floating-point numbers \[images, classes\], got \[4\]"),
        ({"logits": torch.zeros(4, 3, dtype=torch.long)}, r"of torch\.int64"),
        ({"logits": torch.zeros(4, 0)}, r"got \[4, 0\]"),
        ({"labels": torch.zeros(3, dtype=torch.long)}, r"labels must have the shape \[4\] beside .*, got \[3\]"),
        ({"labels": torch.zeros(4)}, "labels must be integers, got float32"),
        ({"labels": torch.tensor([0, 1, 2, 3])}, r"0\.\.2 for 3 classes, got 3"),
        ({"text": torch.zeros(2, 8)}, r"text must have the shape \[3, any\] or \[4, 3, any\] .*, got \[2, 8\]"),
        ({"text": torch.zeros(5, 3, 8)}, r"got \[5, 3, 8\]"),
        ({"base_text": torch.zeros(8)}, r"base_text must have the shape"),
        ({"zero_shot_logits": torch.zeros(4, 2)}, r"zero_shot_logits must have the shape \[4, 3\]"),
        ({"frozen_text": torch.full((3, 8), float("inf"))}, "frozen_text must be finite, got 24"),
        ({"logit_scale": 0.0}, "positive number, got 0"),
    ],
)
def test_stored_logits_of_wrong_shapes_are_refused(fields: dict, says: str) -> None:
    with pytest.raises(CalpromptError, match=says):
        StoredLogits(**{"logits": LOGITS, **fields})


def test_labels_are_given_once() -> None:
    with pytest.raises(CalpromptError, match="has a field for labels"):
        Temperature().fit(StoredLogits(LOGITS), torch.zeros(4, dtype=torch.long))


def test_integer_labels_of_any_type_are_accepted() -> None:
    assert StoredLogits(LOGITS, torch.zeros(len(LOGITS), dtype=torch.int32)).given("labels").dtype == torch.long
