"""The JSON of the API, as its OpenAPI description has it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Problem(BaseModel):
    """What is wrong with a request (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = Field(description="What is wrong and what to do, in a sentence.")


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

    id: str = Field(description="Give it back to mark the answer right or wrong.")
    name: str
    decision: Literal["answer", "unsure", "none of these"]
    class_name: str = Field(description="The most probable class, whatever the decision.")
    probability: float
    probabilities: list[ClassProbability] = Field(description="The most probable classes, falling.")
    prediction_set: list[str] | None
    coverage: float | None
    promised: bool = Field(description="Whether it is an answer behind which the promise on errors stands.")
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
    version: str
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
    marks: bool
    keeps_images: bool
    about: list[str]


class ImageWatchModel(BaseModel):
    """Whether the images are like those the model was fitted on; needs no marks."""

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


class MissedModel(BaseModel):
    """Whether a class that must not be missed still is not; marks that tell the true class count."""

    class_name: str
    promise: str
    status: Literal["holds", "broken"]
    sentence: str
    marks: int
    missed: int


class WatchModel(BaseModel):
    """Whether the promise on errors still holds."""

    status: Literal["holds", "broken", "unwatched"]
    sentence: str
    target_error: float | None
    false_alarm_rate: float | None
    marks: int
    wrong: int
    evidence: float | None
    alarm: float | None
    broken_at: int | None
    images: ImageWatchModel
    classes: list[MissedModel] = Field([], description="Of classes that must not be missed.")


class MarkRequest(BaseModel):
    """An answer that is marked right or wrong."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str = Field(max_length=4096)
    right: bool
    class_name: str | None = Field(default=None, max_length=200, description="The true class, if it is known.")


class MarkModel(BaseModel):
    """What became of a mark."""

    counted: bool
    reason: str | None
    kept: bool
    watch: WatchModel


class Status(BaseModel):
    """Whether the server works."""

    status: str
