"""What is recorded of requests: measurements for Prometheus, and an access log.

The access log has a JSON object for each request: time, id, key, method, route, status, milliseconds and what was
decided. Nothing of an image, a class name or a token is in it.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.process_collector import ProcessCollector

from calprompt.errors import SettingError
from calprompt.promises.image_watch import IMAGES_ALIKE
from calprompt.serve.engine import Answered, Engine
from calprompt.serve.guard import Caller
from calprompt.text import os_problem

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SHARED = "PROMETHEUS_MULTIPROC_DIR"  # environment variable with the folder in which workers add up what they count
SHARES = tuple(step / 20 for step in range(1, 21))


class Measurements:
    """Counters and histograms of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("calprompt_requests", "Requests", ["route", "status"], registry=registry)
        self.seconds = Histogram(
            "calprompt_request_seconds", "Seconds that requests took", ["route"], buckets=SECONDS, registry=registry
        )
        self.images = Counter("calprompt_images", "Images by what became of them", ["decision"], registry=registry)
        self.confidence = Histogram(
            "calprompt_confidence", "Probability of the most probable class", buckets=SHARES, registry=registry
        )
        self.batch_size = Histogram("calprompt_batch_images", "Images per batch", buckets=SIZES, registry=registry)
        self.batch_seconds = Histogram(
            "calprompt_batch_seconds", "Seconds per batch", buckets=SECONDS, registry=registry
        )
        self.abstentions = Counter(
            "calprompt_abstentions", "Images that were not answered: unsure, or none of these", registry=registry
        )
        self.feedback = Counter("calprompt_feedback", "Feedback on answers", ["said", "counted"], registry=registry)
        self.gauges = {
            name: Gauge(f"calprompt_{name}", what, registry=registry, multiprocess_mode="livesum")
            for name, what in (
                ("images_under_way", "Images accepted and not answered yet"),
                ("queue_images", "Images that wait for the model"),
                ("decoders", "Decoding processes that run"),
                ("decoder_restarts", "Decoding processes that were replaced"),
            )
        }
        self.watches = {
            name: Gauge(f"calprompt_{name}", what, ["model"], registry=registry, multiprocess_mode="livemostrecent")
            for name, what in (
                ("watch_evidence", "Evidence against the promise on errors"),
                ("promise_holds", "1: the promise on errors holds so far, 0: it does not"),
                ("images_alike", "1: images are like those of the fit so far, 0: they are not"),
                ("images_evidence", "Evidence against images being like those of the fit"),
                ("images_seen", "Images that were compared with those of the fit"),
            )
        }

    def on_request(self, route: str, status: int, seconds: float) -> None:
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def on_batch(self, size: int, seconds: float) -> None:
        self.batch_size.observe(size)
        self.batch_seconds.observe(seconds)

    def on_answer(self, answered: Answered | None) -> None:
        """Count an answer, or a problem in its place."""
        self.images.labels("problem" if answered is None else answered.answer.decision).inc()
        if answered is not None:
            self.confidence.observe(answered.answer.probability)
            self.abstentions.inc(answered.answer.decision != "answer")

    def on_feedback(self, right: bool, counted: bool) -> None:
        self.feedback.labels("right" if right else "wrong", "yes" if counted else "no").inc()

    def on_engine(self, engine: Engine) -> None:
        """Note what an engine is doing."""
        found = (engine.admission.images, len(engine.batcher), engine.decoders.alive, engine.decoders.restarts)
        for gauge, value in zip(self.gauges.values(), found, strict=True):
            gauge.set(value)

    def text(self, engine: Engine, watches: dict[str, dict[str, Any]]) -> bytes:
        """Everything, as Prometheus reads it, with the state of the watches of each model."""
        self.on_engine(engine)
        for model, watch in watches.items():
            images = watch["images"]
            found = {}
            if watch["evidence"] is not None:
                found = {"watch_evidence": watch["evidence"], "promise_holds": watch["status"] == "holds"}
            if images["evidence"] is not None:
                found |= {"images_alike": images["status"] == IMAGES_ALIKE, "images_evidence": images["evidence"]}
                found["images_seen"] = images["seen"]
            for name, value in found.items():
                self.watches[name].labels(model).set(value)
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)
        return generate_latest(together)


class AccessLog:
    """A line of JSON for each request, in a file that is opened again if it was moved away."""

    def __init__(self, path: str) -> None:
        self._failed = False
        try:
            place = Path(path).expanduser()
            self._handler = logging.StreamHandler() if path == "-" else WatchedFileHandler(place, encoding="utf-8")
        except OSError as error:
            raise SettingError(f"cannot be written: {os_problem(error)}", parameter="access_log") from error
        self._handler.handleError = _raise  # type: ignore[assignment,method-assign]

    def on_request(self, caller: Caller, method: str, route: str, status: int, seconds: float) -> None:
        """Write a line; a disk that is full costs lines and nothing else."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"time": now, "id": caller.id, "key": caller.key.name, "address": caller.address}
        line |= {"method": method, "route": route, "status": status, "ms": round(1000 * seconds, 1), **caller.notes}
        try:
            self._handler.emit(logging.makeLogRecord({"msg": json.dumps(line)}))
            self._failed = False
        except (OSError, ValueError) as error:
            if not self._failed:
                logging.getLogger("calprompt.serve").warning("the access log cannot be written: %s", error)
            self._failed = True


def _raise(_: logging.LogRecord) -> None:
    raise
