"""The OpenAPI description tells the truth: what is sent is answered as it says, and nothing makes the server fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from calprompt.serve.app import create_app
from serve import serving

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SCHEMA = schemathesis.openapi.from_dict(create_app(serving.numpy_model()).openapi())


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving.server() as found:
        yield f"http://127.0.0.1:{found.port}"


@SCHEMA.parametrize()
@settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_route_answers_as_described(case: Any, address: str) -> None:
    case.call_and_validate(base_url=address, checks=CHECKS)
