"""The script decides as the library does: it has the same files in it, and no name of one hides that of another."""

from __future__ import annotations

import ast
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from calprompt.errors import NewerFormatError
from calprompt.export.exporter import script
from calprompt.export.runtime import refuse_newer
from calprompt.kernel import OPEN_SET_SCORES, SET_SCORES, softmax
from calprompt.promises import DecisionRule, OpenSetRule, SetRule, make_answers
from calprompt.promises.rule import Guard


@pytest.fixture(scope="module")
def exported() -> Iterator[ModuleType]:
    module = ModuleType("predict")
    module.__dict__["__file__"] = "predict.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "predict", module)  # dataclasses look for it there
        exec(compile(script(), "predict.py", "exec"), module.__dict__)
        yield module


def test_no_name_of_the_script_is_defined_twice() -> None:
    body = ast.parse(script()).body
    names = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assigned = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    names += [target.id for target in assigned if isinstance(target, ast.Name)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize("score", OPEN_SET_SCORES)
@pytest.mark.parametrize("classes", [1, 2, 6])
def test_the_script_answers_as_the_library_does(exported: Any, score: str, classes: int) -> None:
    z = np.random.default_rng(classes).normal(0, 3, (40, classes)).round(1).astype(np.float32)  # with ties
    p = softmax(z.astype(np.float64))
    costs = tuple(map(tuple, np.random.default_rng(0).integers(0, 9, (classes, classes)).astype(float).tolist()))
    guards = (Guard(0, 0.2, 0.05, promised=True), Guard(classes - 1, 0.4, 0.01))
    names, labels = [f"image {number}" for number in range(len(z))], [f"class {number}" for number in range(classes)]
    quantiles: list[tuple[float, ...]] = [(0.6,), (math.inf,), (math.inf, *[0.3] * (classes - 1))]
    for threshold, each in zip((0.4, 2.05, -math.inf), quantiles, strict=True):
        sets = tuple(SetRule(0.9, len(each) > 1, kind, 1.3, each, (9,) * len(each)) for kind in SET_SCORES)
        open_set = OpenSetRule(score, 1.7, threshold, (0.1, 0.0, 0.2), (0.1, 0.0, 0.3))
        rule = DecisionRule(0.5, 0.1, open_set, sets, costs=costs, guards=guards)
        plain = json.loads(json.dumps(rule.to_dict()))
        assert DecisionRule.from_dict(plain) == rule
        theirs = exported.DecisionRule.from_dict(plain)
        for own, other in zip(sets, theirs.sets, strict=True):
            answers = exported.make_answers(names, z, p, labels, theirs, set_rule=other)
            wanted = make_answers(names, z, p, labels, rule, set_rule=own)
            assert [vars(answer) for answer in answers] == [vars(answer) for answer in wanted]


def test_scores_of_a_newer_version_are_refused() -> None:
    open_set = OpenSetRule("max_logit", 1.0, 0.5, (0.1, 0.0, 0.2), None)
    rule = DecisionRule(open_set=open_set, sets=(SetRule(0.9, False, "lac", 1.0, (0.5,), (9,)),)).to_dict()
    for change in ({"open_set": {**rule["open_set"], "score": "other"}}, {"sets": [{**rule["sets"][0], "score": "x"}]}):
        record = {"rule": {**rule, **change}, "calibrator": {"steps": []}}
        with pytest.raises(NewerFormatError, match=r"use the predict\.py that was exported with it"):
            refuse_newer(Path("model.json"), record)
