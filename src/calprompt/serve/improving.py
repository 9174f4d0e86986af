"""What the page needs beside answers: pictures to try, which to label next, and a new version fitted from these."""

from __future__ import annotations

import asyncio
import io
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Request, Response
from PIL import Image
from pydantic import BaseModel, FailFast, Field

from calprompt import pocket
from calprompt.class_names import normalized_name
from calprompt.classifier.suggesting import suggest
from calprompt.errors import SettingError
from calprompt.serve.guard import caller_of
from calprompt.serve.models import Models
from calprompt.serve.problems import ProblemError
from calprompt.serve.requests import Upload
from calprompt.serve.schemas import Asked, posted, problems
from calprompt.serve.service import Service
from calprompt.serve.settings import ADMIN, ServeSettings

SAMPLES = 6
TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
LARGEST = 2**20  # bytes of a sample
MOST_NUMBERS = 400_000  # probabilities in a request for suggestions
BYTES_PER_NUMBER = 24
NICE = 10
Status = Literal["idle", "fitting", "done", "failed"]
Rows = Annotated[list[Annotated[list[float], FailFast()]], FailFast()]  # the first of many errors is enough


class TrialPicture(BaseModel):
    """A picture to try the model on."""

    name: str
    address: str


class TrialPictures(BaseModel):
    """Pictures to try the model on; none unless its classes are among those of the package, or a folder was given."""

    samples: list[TrialPicture]


class SuggestRequest(Asked):
    """Pictures that were answered, by the probabilities of all classes."""

    candidates: Rows = Field(min_length=1, max_length=1000, description="Those without a label.")
    labelled: Rows = Field([], max_length=1000, description="Those that have one.")
    n: int = Field(20, ge=1, le=200, description="How many to suggest.")


class SuggestModel(BaseModel):
    """Which to label next."""

    order: list[int] = Field(description="Positions among the candidates, the most useful first.")


class ImproveRequest(Asked):
    """What an admin wants done."""

    action: Literal["fit", "stop"]


class ImproveModel(BaseModel):
    """Fitting a new version from what people labelled."""

    possible: bool = Field(description="Whether you can have one fitted.")
    reason: str | None = Field(description="Why none can be fitted from here.")
    status: Status
    kept: int = Field(description="Labelled pictures that the server keeps.")
    version: str | None = Field(description="The version that is being fitted, or was last.")
    sentences: list[str] = Field(description="How the fit went, and whether the new version is better.")


def samples_in(folder: str | Path) -> list[Upload]:
    """The first pictures of a folder, by name."""
    place = Path(folder).expanduser()
    files = sorted(each for each in place.iterdir() if each.suffix.lower() in TYPES) if place.is_dir() else []
    small = [each for each in files if each.stat().st_size <= LARGEST][:SAMPLES]
    if not small:
        raise SettingError(
            f"must be a folder with PNG, JPEG or WebP files of up to 1 MB, got {place}", parameter="samples"
        )
    return [Upload(each.name, each.read_bytes()) for each in small]


@lru_cache(16)
def samples_of_package(class_names: tuple[str, ...]) -> list[Upload]:
    """Test pictures of the package that show these classes, and one that shows none; none if it has few of them.

    They were kept for testing: no model that `calprompt fit` made of the package's data learned from them.

    >>> [sample.name for sample in samples_of_package(("bag", "coat", "dress"))]
    ['bag.png', 'coat.png', 'dress.png', 'something-else.png']
    """
    wanted = {normalized_name(name) for name in class_names}
    sheets = [pocket.sheet(name) for name in pocket.names() if "of" not in pocket.sheet(name).record]
    found = max(sheets, key=lambda sheet: len(wanted & set(map(normalized_name, sheet.class_names))))
    shown = [place for place, name in enumerate(found.class_names) if normalized_name(name) in wanted]
    if 2 * len(shown) < len(wanted):
        return []
    shown = shown[:: -(-len(shown) // (SAMPLES - 1))]
    first: dict[int, np.ndarray] = {}
    for label, _, pixels in found.pictures("test"):
        first.setdefault(label, pixels)
        if len(first) == len(found.class_names):
            break
    other = pocket.sheet("flags" if found is not pocket.sheet("flags") else "clothes")
    odd = next(pixels for _, _, pixels in other.pictures("test"))
    pictures = [(found.class_names[label], first[label]) for label in shown if label in first]
    samples = []
    for name, pixels in (*pictures, ("something-else", odd)):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "png")
        samples.append(Upload(f"{name.replace('/', '-')}.png", stream.getvalue()))
    return samples


def next_version(newest: str) -> str:
    """The name of a version that is newer than the newest.

    >>> next_version("9"), next_version("v10"), next_version("2026-02"), next_version("final")
    ('10', 'v11', '2026-03', 'final-2')
    """
    head, number, tail = re.fullmatch(r"(.*?)(\d*)(\D*)", newest, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{head}{int(number) + 1:0{len(number)}}{tail}" if number else f"{newest}-2"


def suggested(asked: SuggestRequest) -> list[int]:
    """The order of the candidates; the logarithms of their probabilities take the place of image features."""
    rows = asked.candidates + asked.labelled
    width = len(rows[0])
    if not width or any(len(row) != width for row in rows) or width * len(rows) > MOST_NUMBERS:
        raise ProblemError(
            422, f"all pictures must have the same classes, and {MOST_NUMBERS} probabilities at most together"
        )
    p = np.asarray(rows, dtype=np.float64)
    if not (np.isfinite(p).all() and (p >= 0).all() and (p <= 1).all()):
        raise ProblemError(422, "probabilities must be from 0 to 1")
    logs = np.log(np.maximum(p, 1e-6))
    logs -= logs.mean(axis=1, keepdims=True)
    split = len(asked.candidates)
    return suggest(logs[:split], p[:split], asked.n, labelled=logs[split:] if asked.labelled else None)


class Refit:
    """Fits a new version of a model from its old images and those that people labelled, in a process of its own.

    It becomes a folder beside the other versions; nobody is answered by it until an admin has it try or switches.
    """

    def __init__(self, models: Models, settings: ServeSettings) -> None:
        self._models, self._settings = models, settings
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._version: str | None = None
        self._status: Status = "idle"
        self._sentences: list[str] = []

    def why_not(self, name: str) -> str | None:
        """Why a model cannot be fitted again from here; None if it can."""
        if self._settings.refit is None or self._settings.keep is None:
            return "start the server with --refit DATA and --keep DIR to fit new versions from here"
        if not self._models.has_versions(name):
            return f"serve a folder MODELS with MODELS/{name}/VERSION to fit new versions from here"
        if len(self._models.names) > 1:
            return "a server of several models does not know which of them the images belong to"
        return None

    def state(self, name: str, *, is_admin: bool) -> dict[str, Any]:
        """What the page shows."""
        why_not = self.why_not(name)
        kept = 0 if why_not else sum(each.is_file() for each in self._kept(name).glob("*/*"))
        found = {"possible": why_not is None and is_admin, "reason": why_not, "status": self._status, "kept": kept}
        return {**found, "version": self._version, "sentences": self._sentences}

    def _kept(self, name: str) -> Path:
        return Path(self._settings.keep or "").expanduser() / name

    async def start(self, name: str, active: str) -> None:
        """Begin to fit a version that is one newer than the newest."""
        why_not = self.why_not(name)
        if why_not is not None:
            raise ProblemError(409, why_not)
        if self._status == "fitting" or (self._task is not None and not self._task.done()):
            raise ProblemError(409, "a new version is being fitted already")
        if not any(self._kept(name).glob("*/*")):
            raise ProblemError(409, "there are no labelled pictures yet; label some first")
        self._version = next_version(self._models.versions(name)[0])
        active_folder = self._models.folder(name, active)
        command = [sys.executable, "-m", "calprompt", "fit", str(self._settings.refit), "--quiet"]
        command += ["--add", str(self._kept(name)), "--against", str(active_folder)]
        command += ["--out", str(active_folder.parent / self._version)]
        self._status, self._sentences = "fitting", [f"Version {self._version} is being fitted; this may take minutes."]
        pipe = asyncio.subprocess.PIPE
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe}
        try:
            self._process = await asyncio.create_subprocess_exec(*command, **streams)
        except BaseException:
            self._status, self._sentences = "idle", []
            raise
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICE)  # answers come first
        self._task = asyncio.create_task(self._wait(self._process))

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        out, err = (part.decode(errors="replace") for part in await process.communicate())
        if process is not self._process:
            return
        if process.returncode == 0:
            self._status = "done"
            lines = out.splitlines()
            first = next((n for n, line in enumerate(lines) if line.startswith(("Compared", "Whether"))), len(lines))
            self._sentences = [f"Version {self._version} is there."]
            self._sentences += [line for line in lines[first:] if line][:2]
        elif self._status == "fitting":
            self._status = "failed"
            why = err.strip().removeprefix("error: ").splitlines() or ["the fit ended without a message"]
            self._sentences = [f"No new version: {why[-1] if 'Traceback' in err else why[0]}"]

    async def stop(self) -> None:
        """Stop what is under way; what it learned so far is kept and gone on with."""
        if self._process is not None and self._process.returncode is None:
            self._status, self._sentences = "idle", []
            self._process.terminate()
        if self._task is not None:
            await asyncio.wait([self._task])


def add_improving(app: FastAPI, state: Service) -> Refit:
    """Add these routes to an app; without samples of its own, it offers those of the package."""
    samples = None if state.settings.samples is None else samples_in(state.settings.samples)
    refit = Refit(state.models, state.settings)

    def samples_for(request: Request) -> Sequence[Upload]:
        return samples_of_package(state.deployment(request).active.labels) if samples is None else samples

    def improvement(request: Request) -> dict[str, Any]:
        return refit.state(state.deployment(request).name, is_admin=caller_of(request).key.may(ADMIN))

    @app.get("/v1/samples", response_model=TrialPictures, responses=problems(401))
    async def list_samples(request: Request) -> dict[str, Any]:
        """Pictures to try the model on."""
        found = samples_for(request)
        return {"samples": [{"name": each.name, "address": f"v1/samples/{n}"} for n, each in enumerate(found)]}

    @app.get("/v1/samples/{number}", include_in_schema=False)
    async def sample(request: Request, number: int) -> Response:
        found = samples_for(request)
        if not 0 <= number < len(found):
            raise ProblemError(404, "there is no such picture")
        return Response(found[number].data, media_type=TYPES[Path(found[number].name).suffix.lower()])

    @posted(app, "/v1/suggest", SuggestModel, SuggestRequest)
    async def suggest_next(request: Request) -> dict[str, Any]:
        """Which pictures to label next: uncertain ones, unlike those that have a label, and unlike each other."""
        most = min(state.settings.body_bytes, BYTES_PER_NUMBER * MOST_NUMBERS)
        with state.ticket(request) as ticket:
            ticket.take(images=1)
            asked = await state.read(request, SuggestRequest, ticket, most)
            return {"order": await asyncio.to_thread(suggested, asked)}

    @app.get("/v1/improve", response_model=ImproveModel, responses=problems(401))
    async def improve(request: Request) -> dict[str, Any]:
        """Whether a new version can be fitted from the labelled pictures, and how far that is."""
        return improvement(request)

    @posted(app, "/v1/improve", ImproveModel, ImproveRequest, 409)
    async def change_improve(request: Request) -> dict[str, Any]:
        """An admin has a new version fitted from the old images and the labelled ones, or stops that."""
        with state.ticket(request) as ticket:
            asked = await state.read(request, ImproveRequest, ticket)
        deployment = state.deployment(request)
        if asked.action == "stop":
            await refit.stop()
        else:
            if refit.why_not(deployment.name) is None:
                state.models.write_plan(deployment.name, deployment.plan)  # or the newest would answer after a restart
            await refit.start(deployment.name, deployment.plan.active)
        return improvement(request)

    return refit
