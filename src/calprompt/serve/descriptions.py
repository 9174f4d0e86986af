"""The model and its answers as the API gives them, and what its OpenAPI description says of bodies and problems."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

import calprompt
from calprompt.promises import Meaning
from calprompt.serve import schemas
from calprompt.serve.engine import Answered, Options
from calprompt.serve.problems import MEDIA_TYPE
from calprompt.serve.served_model import MOST_CHARACTERS, MOST_CLASSES, ServedModel
from calprompt.serve.settings import ServeSettings

BINARY = {"type": "string", "format": "binary"}
OPTIONS = {
    "coverage": {"type": "number", "minimum": 0, "maximum": 1},
    "per_class": {"type": "boolean"},
    "min_confidence": {"type": "number", "minimum": 0, "maximum": 1},
    "classes": {"type": "array", "items": {"type": "string"}},
    "top": {"type": "integer", "minimum": 1},
}


def _form(images: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "required": ["image"], "properties": {"image": images, **OPTIONS}}
    return {"multipart/form-data": {"schema": schema}}


def _body(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


IMAGE_BODY = _body(
    {kind: {"schema": BINARY} for kind in ("image/jpeg", "image/png", "image/webp", "application/octet-stream")}
    | _form(BINARY)
)
IMAGES_BODY = _body(_form({"type": "array", "items": BINARY}))
MARK_BODY = _body(
    {
        "application/json": {"schema": schemas.MarkRequest.model_json_schema()},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["id", "right"],
                "properties": {
                    "id": {"type": "string"},
                    "right": {"type": "boolean"},
                    "class_name": {"type": "string"},
                    "image": BINARY,
                },
            }
        },
    }
)


def PROBLEMS(*statuses: int) -> dict[int | str, dict[str, Any]]:  # noqa: N802
    """Responses of a route that are problems."""
    return {
        status: {
            "description": "A problem, in words",
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


def describe(app: FastAPI) -> None:
    """Complete the OpenAPI description: the schema of problems, and problems in the place of FastAPI's own."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = made()
            found.setdefault("components", {}).setdefault("schemas", {})["Problem"] = (
                schemas.Problem.model_json_schema()
            )
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def model_info(model: ServedModel, settings: ServeSettings) -> dict[str, Any]:
    """What GET /v1/model gives."""
    rule = model.rule
    return {
        "name": model.name,
        "kind": model.kind,
        "version": calprompt.__version__,
        "fingerprint": model.fingerprint,
        "classes": list(model.labels),
        "fitted_classes": list(model.fitted_labels),
        "classes_editable": model.with_labels is not None,
        "classes_reason": model.fixed,
        "calibrator": model.calibrator,
        "min_confidence": rule.min_confidence,
        "target_error": rule.target_error if rule.promised else None,
        "withdrawn": rule.withdrawn,
        "promises": list(model.promises),
        "coverages": [{"coverage": each.coverage, "per_class": each.per_class} for each in rule.sets],
        "none_of_these": rule.open_set is not None,
        "evidence": None if model.track_record is None else model.track_record.summary,
        "limits": {
            "body_bytes": settings.body_bytes,
            "pixels": settings.pixels,
            "formats": list(settings.formats),
            "batch_images": settings.max_images,
            "classes": MOST_CLASSES,
            "class_characters": MOST_CHARACTERS,
        },
        "marks": True,
        "keeps_images": settings.keep is not None,
        "about": list(model.about),
    }


def shown(answered: Answered, options: Options, receipt: str) -> dict[str, Any]:
    """What POST /v1/predict gives."""
    answer = answered.answer
    return {
        "id": receipt,
        "name": answer.name,
        "decision": answer.decision,
        "class_name": answer.class_name,
        "probability": answer.probability,
        "probabilities": [{"class_name": name, "probability": share} for name, share in answered.probabilities],
        "prediction_set": None if answer.prediction_set is None else list(answer.prediction_set),
        "coverage": options.coverage,
        "promised": answer.promised,
        "guarded": answer.guarded,
        "withdrawn": answered.model.rule.withdrawn,
        "meaning": None if answered.meaning is None else _meaning(answered.meaning, answered.meaning_text),
        "image": {"width": answered.image.width, "height": answered.image.height, "format": answered.image.format},
    }


def _meaning(meaning: Meaning, text: str | None) -> dict[str, Any]:
    right, *interval = meaning.of_100 or (None,)
    return {"right": right, "of": 100, "interval": interval or None, "images": meaning.images, "text": text}
