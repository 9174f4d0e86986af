"""The JSON of the API: its OpenAPI description, and the model and its answers as clients get them."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

import calprompt
from calprompt.promises import ANSWER, Meaning
from calprompt.serve.engine import Answered, Options
from calprompt.serve.problems import MEDIA_TYPE
from calprompt.serve.served_model import MOST_CHARACTERS, MOST_CLASSES, ServedModel
from calprompt.serve.settings import ServeSettings


class Asked(BaseModel):
    """The JSON body of a request, in which nothing else may be."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Problem(BaseModel):
    """What is wrong with a request (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = Field(description="What is wrong and what to do, in a sentence.")
    request_id: str | None = Field(None, description="Stands in the access log too.")


class ClassProbability(BaseModel):
    """A class and its calibrated probability."""

    class_name: str
    probability: float


class MeaningModel(BaseModel):
    """How often answers this sure were right, on labelled images that the model did not learn from."""

    right: int | None = Field(description="Of `of` answers this sure, so many were right; null if too few tell.")
    of: int = 100
    interval: list[int] | None = Field(description="95 % interval of `right`; null if too few images tell.")
    images: int = Field(description="How many images say so.")
    text: str


class ImageFacts(BaseModel):
    """What was decoded."""

    width: int
    height: int
    format: str


class AnswerModel(BaseModel):
    """What the model says of an image."""

    id: str = Field(description="Give it back with feedback on the answer.")
    name: str
    model_version: str
    decision: Literal["answer", "unsure", "none of these"]
    class_name: str = Field(description="The most probable class, whatever the decision.")
    probability: float
    probabilities: list[ClassProbability] = Field(description="The most probable classes, falling.")
    prediction_set: list[str] | None
    coverage: float | None
    promised: bool = Field(description="Whether the promise on errors covers this answer.")
    guarded: str | None = Field(None, description="A class that must not be missed, and that it may be.")
    withdrawn: str | None
    meaning: MeaningModel | None
    image: ImageFacts


class FailedImage(BaseModel):
    """An image of a batch that could not be answered."""

    name: str
    problem: Problem


class BatchModel(BaseModel):
    """Answers in the order of the images."""

    answers: list[AnswerModel | FailedImage]


class PromiseModel(BaseModel):
    """Something that the model promises of its answers."""

    model_config = ConfigDict(extra="ignore")

    kind: str
    text: str
    status: Literal["made", "refused", "withdrawn"]
    detail: str
    sentence: str
    excluded: list[str] = Field([], description="Classes of which no image was held out; the sentence names them too.")
    excluded_share: float = Field(0.0, description="Their share of the images.")
    whole: bool = Field(True, description="Whether it covers their images, even if all of them are wrong.")


class CoverageModel(BaseModel):
    """A kind of prediction set."""

    coverage: float
    per_class: bool


class Limits(BaseModel):
    """What a request may have."""

    body_bytes: int
    pixels: int
    formats: list[str]
    batch_images: int
    classes: int
    class_characters: int


class ModelInfo(BaseModel):
    """The model that is served."""

    name: str
    kind: Literal["model", "run", "onnx"]
    version: str = Field(description="Of calprompt.")
    model_version: str
    fingerprint: str
    classes: list[str]
    fitted_classes: list[str]
    classes_editable: bool
    classes_reason: str | None
    calibrator: str | None
    min_confidence: float | None
    target_error: float | None
    withdrawn: str | None
    promises: list[PromiseModel]
    coverages: list[CoverageModel]
    none_of_these: bool
    evidence: dict[str, Any] | None = Field(description="Its track record on images that it did not learn from.")
    limits: Limits
    keeps_images: bool
    weak: list[str] = Field([], description="Classes most of whose labelled images it is wrong on.")
    about: list[str]


class Handled(BaseModel):
    """What an admin did about an alarm."""

    time: float = Field(description="Seconds since 1970.")
    author: str = Field(description="Name of the key.")
    note: str


class ImageWatchModel(BaseModel):
    """Whether the images are like those the model was fitted on; needs no feedback."""

    status: Literal["alike", "changed", "unwatched"]
    sentence: str
    advice: str | None = Field(description="What to do, if they are not.")
    held_out: int | None = Field(description="Images of the fit that they are compared with.")
    seen: int
    repeated: int = Field(description="Images that do not count, because they were seen before or belong to the fit.")
    evidence: float | None
    alarm: float | None = Field(description="The evidence with which they are said not to be alike.")
    false_alarm_rate: float | None
    changed_at: int | None
    acknowledged: Handled | None
    reset: Handled | None


class MissedModel(BaseModel):
    """Whether a class that must not be missed still is not; feedback that tells the true class counts."""

    class_name: str
    promise: str
    status: Literal["holds", "broken"]
    sentence: str
    feedback: int
    missed: int


class WatchModel(BaseModel):
    """Whether the promise on errors still holds."""

    status: Literal["holds", "broken", "unwatched"]
    sentence: str
    target_error: float | None
    false_alarm_rate: float | None
    feedback: int = Field(description="Answers with feedback that counts, since the watch was started.")
    wrong: int
    evidence: float | None
    alarm: float | None
    broken_at: int | None
    acknowledged: Handled | None = Field(description="Who has seen the alarm.")
    reset: Handled | None = Field(description="Who restarted the watch last.")
    images: ImageWatchModel
    classes: list[MissedModel] = Field([], description="Of classes that must not be missed.")


class VersionModel(BaseModel):
    """A version of a model."""

    version: str
    loaded: bool = Field(description="Whether it is in memory, so that switching to it takes no time.")


class SampleModel(BaseModel):
    """How a new version did on the images answered last."""

    images: int
    same_class: int = Field(description="Of them, so many got the class that the version before named.")


class VersionsModel(BaseModel):
    """The versions of a model and which of them are in use."""

    name: str
    path: str | None = Field(None, description="Below it are the addresses of this model.")
    active: str = Field(description="Answers.")
    previous: str | None = Field(description="Answered before it; `rollback` goes back to it.")
    shadow: str | None = Field(description="Answers beside it, unseen by clients.")
    next: str | None = Field(description="Is being loaded.")
    versions: list[VersionModel] = Field(description="The newest first.")
    sample: SampleModel | None = None


class ModelsModel(BaseModel):
    """The models of a server."""

    models: list[VersionsModel]


class VersionRequest(Asked):
    """What an admin wants of the versions."""

    action: Literal["switch", "rollback", "shadow"]
    version: str | None = Field(None, max_length=100)


class DifferenceModel(BaseModel):
    """An image on which two versions differ."""

    image: str = Field(description="Digest of its pixels; kept images have it in their name.")
    time: float
    decision: str
    class_name: str
    probability: float
    shadow_decision: str
    shadow_class_name: str
    shadow_probability: float
    true: str | None = Field(description="The true class, if feedback told it.")
    right: bool | None
    shadow_right: bool | None


class ComparisonModel(BaseModel):
    """How a version in the shadow does beside the active one."""

    active: str
    version: str
    images: int = Field(description="Answered by both.")
    different: int = Field(description="Of them, so many got another class.")
    told: int = Field(description="Images with feedback that says whether each of the two was right.")
    right: int = Field(description="Of them, so many were right by the active version.")
    shadow_right: int
    only_right: int = Field(description="Right by the active version alone.")
    only_shadow_right: int
    evidence: float = Field(
        description="That one is better; 20 or more is clear: if none is, that happens with a chance of 5 % at most."
    )
    verdict: Literal["better", "worse", "too few to tell"] = Field(description="What the shadow version is.")
    sentence: str
    differences: list[DifferenceModel] = Field(description="The newest first.")


class FeedbackRequest(Asked):
    """An answer that was right or wrong."""

    id: str = Field(max_length=4096)
    right: bool
    class_name: str | None = Field(default=None, max_length=200, description="The true class, if it is known.")


class UndoRequest(Asked):
    """Feedback that is taken back."""

    id: str = Field(max_length=4096)


class AlarmRequest(Asked):
    """What an admin does about an alarm."""

    action: Literal["acknowledge", "reset"]
    watch: Literal["promise", "images"] = "promise"
    note: str = Field("", max_length=1000, description="Why; it stays on record.")


class FeedbackModel(BaseModel):
    """What became of feedback."""

    counted: bool
    reason: str | None
    kept: bool
    watch: WatchModel


class Status(BaseModel):
    """Whether the server works."""

    status: str


BINARY = {"type": "string", "format": "binary"}


def _form(images: dict[str, Any]) -> dict[str, Any]:
    options = Options.model_json_schema()["properties"]
    fields = {name: each.get("anyOf", [each])[0] for name, each in options.items()}  # a form has no null
    schema = {"type": "object", "required": ["image"], "properties": {"image": images, **fields}}
    return {"multipart/form-data": {"schema": schema}}


def _body(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


IMAGE_BODY = _body(
    {kind: {"schema": BINARY} for kind in ("image/jpeg", "image/png", "image/webp", "application/octet-stream")}
    | _form(BINARY)
)
IMAGES_BODY = _body(_form({"type": "array", "items": BINARY}))
_feedback = FeedbackRequest.model_json_schema()
_with_image = {**_feedback, "properties": {**_feedback["properties"], "image": BINARY}}
FEEDBACK_BODY = _body({"application/json": {"schema": _feedback}, "multipart/form-data": {"schema": _with_image}})


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Responses of a route that are problems."""
    return {
        status: {
            "description": "A problem, in words",
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


def posted(app: FastAPI, path: str, answer: type[BaseModel], body: Any, *more: int) -> Any:
    """A route that takes a body: what is in it, and statuses of problems besides those of any body."""
    if not isinstance(body, dict):
        body = _body({"application/json": {"schema": body.model_json_schema()}})
    responses = problems(400, 401, 403, 408, 413, 415, 422, 429, *more)
    return app.post(path, response_model=answer, responses=responses, openapi_extra=body)


def describe(app: FastAPI) -> None:
    """Complete the OpenAPI description: the schema of problems, and problems in the place of FastAPI's own."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = made()
            found.setdefault("components", {}).setdefault("schemas", {})["Problem"] = Problem.model_json_schema()
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
        "model_version": model.version,
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
        "keeps_images": settings.keep is not None,
        "weak": list(model.weak),
        "about": list(model.about),
    }


def shown(answered: Answered, receipt: str, options: Options) -> dict[str, Any]:
    """What POST /v1/predict gives."""
    answer = answered.answer
    return {
        "id": receipt,
        "name": answer.name,
        "model_version": answered.model.version,
        "decision": answer.decision,
        "class_name": answer.class_name,
        "probability": answer.probability,
        "probabilities": [{"class_name": name, "probability": share} for name, share in answered.probabilities],
        "prediction_set": None if answer.prediction_set is None else list(answer.prediction_set),
        "coverage": options.coverage,
        "promised": answer.promised,
        "guarded": answer.guarded,
        "withdrawn": answered.model.rule.withdrawn,
        "meaning": None if answered.meaning is None else _meaning(answered.meaning, answer.decision),
        "image": {"width": answered.image.width, "height": answered.image.height, "format": answered.image.format},
    }


def _meaning(meaning: Meaning, decision: str) -> dict[str, Any]:
    right, *interval = meaning.of_100 or (None,)
    text = meaning.sentence("answers" if decision == ANSWER else "guesses")
    return {"right": right, "of": 100, "interval": interval or None, "images": meaning.images, "text": text}
