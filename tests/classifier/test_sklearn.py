"""scikit-learn's manners: parameters, clones, pipelines, searches, and the estimator checks that apply to images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks
from sklearn.utils.validation import check_is_fitted

from calprompt import Classifier
from classifier.fits import classifier, fitted, picture_paths

CHECKS = [  # those that need no table of numbers
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_mixin_order",
    "check_do_not_raise_errors_in_init_or_set_param",
    "check_estimator_get_tags_default_keys",
]


@pytest.mark.parametrize("name", [name for name in CHECKS if hasattr(estimator_checks, name)])
def test_estimator_check(name: str) -> None:
    getattr(estimator_checks, name)("Classifier", Classifier(verbose=False))


def test_most_checks_were_found() -> None:
    assert sum(hasattr(estimator_checks, name) for name in CHECKS) >= 9


def test_clones_and_parameters() -> None:
    model = classifier(options={"weight": 4.0}, class_names={0: "cat"})
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy is not model
    assert copy.set_params(epochs=7).epochs == 7
    assert is_classifier(model)
    with pytest.raises(NotFittedError):
        check_is_fitted(model)
    check_is_fitted(fitted())
    with pytest.raises(NotFittedError, match="call fit"):
        model.predict(picture_paths()[0])
    assert not hasattr(clone(fitted()), "classes_")
    assert "tiny-clip" in repr(model)


def test_in_pipelines_and_searches() -> None:
    paths = np.array(picture_paths())
    labels = np.array([Path(path).parent.name for path in paths])
    pipeline = make_pipeline(FunctionTransformer(), classifier(tuner="zero-shot"))
    pipeline.fit(paths, labels)
    assert pipeline.predict_proba(paths[:3]).shape == (3, 6)
    assert pipeline.classes_.tolist() == sorted(set(labels))
    assert 0 <= pipeline.score(paths, labels) <= 1
    scores = cross_val_score(classifier(tuner="zero-shot"), paths, labels, cv=2)
    assert len(scores) == 2
    search = GridSearchCV(classifier(tuner="zero-shot"), {"calibrator": ["none", "temperature"]}, cv=2)
    search.fit(paths, labels)
    assert search.best_params_["calibrator"] in ("none", "temperature")
    assert search.predict(paths[:2]).shape == (2,)
