"""What the routes work with: models and their versions, the engine, measurements and the keeper, in one process.

A version is loaded beside those in use, tried on a sample, and becomes the active one between two requests: those
under way keep the version they began with. The one before stays in memory, so that going back takes no time.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from fastapi import Request
from numpy.typing import NDArray

from calprompt.errors import CalpromptError, SettingError
from calprompt.promises.image_watch import image_scores
from calprompt.serve.admission import Ticket
from calprompt.serve.decoder import View
from calprompt.serve.engine import Answered, Engine, Options
from calprompt.serve.feedback import Receipt, read_receipt, sign
from calprompt.serve.feedback_store import ShadowAnswer
from calprompt.serve.guard import Caller
from calprompt.serve.measurements import Measurements
from calprompt.serve.models import Keeper, Models, Plan
from calprompt.serve.problems import ProblemError, problem_of
from calprompt.serve.requests import Form, Model, Upload, read_body, read_form, read_json
from calprompt.serve.served_model import ServedModel
from calprompt.serve.settings import ServeSettings
from calprompt.text import shorten

LOG = logging.getLogger("calprompt.serve")
FOLLOWED = 0.5  # seconds between two looks at what the keeper wants, if other processes can change it
LOADED = 600.0  # seconds in which all processes have to load a new version
MOST_SHADOWS = 64  # images that wait for the shadow version; further ones are left out
SAMPLE = 32  # images answered last, in memory, that a new version is tried on
SUM_TOLERANCE = 1e-3  # of probabilities
SMALL_BODY = 64 * 1024  # bytes of one that has no image


class Deployment:
    """The versions of a model that this process has in memory."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.name, self.plan = name, plan
        self.loaded: dict[str, ServedModel] = {}
        self.books: dict[str, tuple[bytes, View]] = {}  # of each version that answered, also of those that are gone
        self.recent: deque[NDArray[np.uint8]] = deque(maxlen=SAMPLE)

    @property
    def active(self) -> ServedModel:
        return self.loaded[self.plan.active]

    @property
    def shadow(self) -> ServedModel | None:
        """The version that answers beside it."""
        return None if self.plan.shadow is None else self.loaded.get(self.plan.shadow)

    def follow(self, plan: Plan) -> list[ServedModel]:
        """Use the versions of a plan from now on, all of which are in memory; returns those needed no longer."""
        if plan.active != self.plan.active:
            self.recent.clear()
        self.plan = plan
        kept = {*plan.needed, plan.previous}
        gone = [version for version in self.loaded if version not in kept]
        return [self.loaded.pop(version) for version in gone]

    def read(self, receipt: str) -> tuple[Receipt, str, View]:
        """A receipt of an answer, the version that gave it, and its view."""
        for version, (secret, view) in self.books.items():
            found = read_receipt(receipt, secret)
            if found is not None:
                return found, version, view
        raise SettingError(
            "id belongs to no answer of this server, or the server was restarted since; send the image again"
        )


async def try_on_sample(engine: Engine, new: ServedModel, old: ServedModel, recent: Sequence[Any]) -> dict[str, int]:
    """How many of the images answered last a new version names the same class on; raises if its answers are none."""
    size = new.view.size
    noise = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    images = list(recent) if new.view == old.view else []
    found = await asyncio.gather(*(engine.batcher.submit(new, each) for each in [noise, *images]))
    for _, probabilities in found:
        shown = np.asarray(probabilities)
        if shown.shape != (len(new.labels),) or not abs(shown.sum() - 1) < SUM_TOLERANCE:
            raise SettingError(
                f"version {new.version} of {new.name} does not return probabilities of its classes, so it is not used"
            )
    before = await asyncio.gather(*(engine.batcher.submit(old, each) for each in images))
    pairs = zip(found[1:], before, strict=True)
    same = sum(new.labels[int(a[1].argmax())] == old.labels[int(b[1].argmax())] for a, b in pairs)
    return {"images": len(images), "same_class": same}


class Service:
    """What the routes work with; the `keeper` is one in this process, or a stand-in for one elsewhere."""

    def __init__(self, models: Models, settings: ServeSettings, keeper: Keeper | Any) -> None:
        self.models, self.settings, self.keeper = models, settings, keeper
        self.measurements = Measurements()
        self.deployments: dict[str, Deployment] = {}
        self.engine = Engine(settings, on_batch=self.measurements.on_batch)
        self.started = False
        self.is_draining: Callable[[], bool] = lambda: False
        self.on_ready: Callable[[], None] = lambda: None
        self._id = secrets.token_hex(8)
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._always: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Future[Any]] = set()
        self._shadows = 0
        self._following, self._checking = asyncio.Lock(), asyncio.Lock()

    @property
    def ready(self) -> bool:
        return self.started and not self.is_draining() and self.engine.decoders.alive > 0

    async def start(self) -> None:
        """Start processes and threads, and load the models."""
        await self.engine.start()
        is_one_of_many = not isinstance(self.keeper, Keeper)
        if is_one_of_many:  # it is waited for while it loads
            self._always.append(asyncio.create_task(self._repeat(lambda: self._check_in({}))))
        await self.follow()
        if is_one_of_many:
            self._always.append(asyncio.create_task(self._repeat(self.follow)))
        self.started = True
        self.on_ready()

    async def close(self) -> None:
        """Stop them, after what is under way."""
        self.started = False
        await self.engine.close()
        for task in self._always:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._loader.shutdown(wait=False, cancel_futures=True)
        try:
            await self.ask("close" if isinstance(self.keeper, Keeper) else "save")
        except CalpromptError as error:
            LOG.warning("%s", error)

    async def ask(self, method: str, *args: Any, **options: Any) -> Any:
        """What the keeper says; one that is elsewhere is waited for, one that writes to disk does so in a thread."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(None, lambda: self.keeper.call(method, *args, **options))
        return await found if isinstance(found, Awaitable) else found

    async def feedback(self, model: ServedModel | tuple[str, str], method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the `FeedbackBook` of a version."""
        name, version = model if isinstance(model, tuple) else (model.name, model.version)
        return await self.ask("feedback", name, version, method, *args, **options)

    # ---- versions

    async def follow(self) -> None:
        """Load what the keeper wants, and use it."""
        async with self._following:
            failures: dict[str, str] = {}
            plans = await self._check_in(failures)
            for name, plan in plans.items():
                deployment = self.deployments.setdefault(name, Deployment(name, plan))
                for version in plan.needed:
                    try:
                        await self._load(deployment, version)
                    except Exception as error:
                        if version != plan.next:
                            raise
                        why = str(error) if isinstance(error, CalpromptError) else repr(error)
                        failures[name] = f"version {version} of {name} cannot be loaded: {why}"
                        if not isinstance(error, CalpromptError):
                            LOG.exception("a version cannot be loaded")
                for gone in deployment.follow(plan):
                    self.engine.forget(gone)
            await self._check_in(failures)

    async def _check_in(self, failures: dict[str, str]) -> dict[str, Plan]:
        async with self._checking:  # what is said last is what is true
            loaded = {
                name: [each.plan.active, *each.loaded] if each.plan.active in each.loaded else []
                for name, each in self.deployments.items()
            }
            found: dict[str, Plan] = await self.ask("check_in", self._id, loaded, failures)
            return found

    async def _repeat(self, call: Callable[[], Awaitable[Any]]) -> None:
        while True:
            await asyncio.sleep(FOLLOWED)
            try:
                await call()
            except CalpromptError as error:
                LOG.warning("%s", error)
            except Exception:
                LOG.exception("the versions are not followed; trying again")

    async def _load(self, deployment: Deployment, version: str) -> ServedModel:
        if version not in deployment.loaded:
            loop = asyncio.get_running_loop()
            model = await loop.run_in_executor(self._loader, self.models.load, deployment.name, version)
            await self.engine.warm(model)
            deployment.books |= await self.ask("open", model)
            deployment.loaded[version] = model
        return deployment.loaded[version]

    async def change(self, deployment: Deployment, action: str, version: str | None) -> dict[str, int] | None:
        """Switch to a version, go back to the one before, or have one answer in the shadow; all processes follow.

        Returns how the version did on the images answered last.
        """
        name = deployment.name
        plan = (await self._check_in({}))[name]
        if action == "rollback":
            if plan.previous is None:
                raise SettingError(f"{name} has no version to go back to: none was switched yet")
            version = plan.previous
        if version is None and action != "shadow":
            raise SettingError("must be the version to switch to", parameter="version")
        if version == plan.active:
            raise SettingError(f"version {version} of {name} answers already")
        new = replace(plan, shadow=version, next=None)
        if action != "shadow":
            shadow = None if version == plan.shadow else plan.shadow
            new = Plan(str(version), previous=plan.active, shadow=shadow)
        sample = None
        wanted = plan.active if version is None else version
        proposing: asyncio.Future[Plan] = asyncio.ensure_future(self.ask("propose", name, plan, wanted))
        try:
            proposed = await asyncio.shield(proposing)
            if version is not None:
                await self.follow()
                await self._wait_for_all(name, version)
                model = deployment.loaded[version]
                sample = await try_on_sample(self.engine, model, deployment.active, deployment.recent)
            await self.ask("commit", name, proposed, new)
        except BaseException as error:
            await asyncio.shield(self._cancel(name, proposing))
            if isinstance(error, TimeoutError):
                raise ProblemError(
                    409, f"version {version} was not loaded in {LOADED:g} s; nothing was switched"
                ) from None
            raise
        await self.follow()
        try:
            await self._wait_for_all(name, new.active, active=True)
        except TimeoutError:
            raise ProblemError(
                409,
                f"version {new.active} of {name} is to answer, and a process does not follow after {LOADED:g} s; "
                "see the log",
            ) from None
        return sample

    def versions(self, deployment: Deployment) -> dict[str, Any]:
        """The versions of a model, and which of them are in use."""
        versions = self.models.versions(deployment.name)
        found = [{"version": each, "loaded": each in deployment.loaded} for each in versions]
        return {"name": deployment.name, **asdict(deployment.plan), "versions": found}

    async def _wait_for_all(self, name: str, version: str, *, active: bool = False) -> None:
        """Until all processes have a version, or answer with it."""
        async with asyncio.timeout(LOADED):
            while not await self.ask("is_loaded", name, version, active=active):
                await asyncio.sleep(FOLLOWED / 5)

    async def _cancel(self, name: str, proposing: asyncio.Future[Plan]) -> None:
        """Let go of a version that was to be used, unless that was refused."""
        await asyncio.wait([proposing])
        if proposing.exception() is None:
            await self.ask("cancel", name, proposing.result())
            await self.follow()

    # ---- images

    def ticket(self, request: Request) -> AbstractContextManager[Ticket]:
        """A place for a request, counted for its client."""
        if not self.started:
            raise ProblemError(503, "the server is starting or being stopped; try again", Retry_After="1")
        return self.engine.admission.ticket(request.scope["caller"].client)

    def deployment(self, request: Request) -> Deployment:
        """The model that the address names, or the first one."""
        return self.find(request.scope.get("deployment") or self.models.names[0])

    def find(self, name: str) -> Deployment:
        """The model of a name."""
        if name not in self.models.names:
            raise ProblemError(404, f"there is no model {name!r}; there are: {shorten(self.models.names)}")
        if name not in self.deployments:
            raise ProblemError(503, "the server is starting; try again", Retry_After="1")
        return self.deployments[name]

    async def body(self, request: Request, ticket: Ticket, most: int | None = None) -> bytes:
        """The body of a request, of `most` bytes or as many as the settings say."""
        most, timeout = most or self.settings.body_bytes, self.settings.timeout
        return await read_body(request, ticket, most=most, timeout=timeout)

    async def read(self, request: Request, kind: type[Model], ticket: Ticket, most: int = SMALL_BODY) -> Model:
        """A JSON body, checked."""
        data = await self.body(request, ticket, most)
        return await asyncio.to_thread(read_json, request, data, kind)

    async def form(self, request: Request, ticket: Ticket, *, most_images: int) -> Form:
        """The images and fields of a request, within all limits."""
        return await read_form(request, await self.body(request, ticket), ticket, most_images=most_images)

    async def answer(
        self,
        deployment: Deployment,
        upload: Upload,
        options: Options,
        caller: Caller,
        *,
        model: ServedModel | None = None,
        formats: tuple[str, ...] | None = None,
    ) -> tuple[Answered, str]:
        """The answer for an image, of the active version unless another is given, and its receipt; raises a problem."""
        model = model or deployment.active
        most = self.settings.timeout + self.settings.decode_timeout  # decoding says itself why it is given up
        try:
            async with asyncio.timeout(most):
                image = await self.engine.decoders.decode(upload.data, model.view, caller.client, formats)
                answered = await self.engine.answer(model, upload.name, image, options, caller.client)
        except (TimeoutError, CalpromptError) as error:
            self.measurements.on_answer(None)
            if isinstance(error, CalpromptError):
                raise problem_of(error) from error
            raise ProblemError(503, f"the answer took longer than {most:g} s; send it again", Retry_After="1") from None
        self.measurements.on_answer(answered)
        decided = caller.notes.setdefault("decisions", {})
        decided[answered.answer.decision] = decided.get(answered.answer.decision, 0) + 1
        answer = answered.answer
        facts = (answer.decision, answer.class_name, answer.promised)
        receipt = Receipt.of(answered.model.fingerprint, image.pixels.tobytes(), *facts)
        watch = answered.model.image_watch
        if watch is not None and not options.preview:  # of edited classes nothing is held out
            scores = image_scores(answered.logits[None], watch["temperature"])[0].tolist()
            self._hold(self.feedback(answered.model, "see", scores, receipt.image))  # the answer does not wait for it
        if not (options.classes or options.preview) and model is deployment.active:
            deployment.recent.append(image.pixels)
            if deployment.shadow is not None and self._shadows < MOST_SHADOWS:
                self._shadows += 1
                if deployment.shadow.view == model.view:
                    upload = upload._replace(data=b"")  # its pixels do: what waits holds no file
                self._hold(self._answer_in_shadow(deployment.shadow, answered, upload, receipt.image, formats))
        return answered, sign(receipt, deployment.books[model.version][0])

    async def _answer_in_shadow(
        self, shadow: ServedModel, answered: Answered, upload: Upload, digest: str, formats: tuple[str, ...] | None
    ) -> None:
        """Have another version answer the same image, and note how."""
        try:
            image = answered.image
            if shadow.view != answered.model.view:
                image = await self.engine.decoders.decode(upload.data, shadow.view, "shadow", formats)
            other = (await self.engine.answer(shadow, upload.name, image, Options(), "shadow")).answer
            own = answered.answer
            first = (shadow.version, digest, time.time(), own.decision, own.class_name, own.probability)
            note = ShadowAnswer(*first, other.decision, other.class_name, other.probability)
            await self.feedback(answered.model, "add_shadow_answer", note)
        finally:
            self._shadows -= 1

    def _hold(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.warning("an image is not watched: %s", error)

    async def watch(self, deployment: Deployment) -> dict[str, Any]:
        """The state of both watches, with all images that were answered before."""
        await self._settle()
        return dict(await self.feedback(deployment.active, "state"))

    async def compare(self, deployment: Deployment) -> dict[str, Any]:
        """Where the shadow version answers differently."""
        if deployment.shadow is None:
            raise ProblemError(404, f"no version of {deployment.name} answers in the shadow; an admin can start one")
        await self._settle()
        active = deployment.active
        found = await self.feedback(active, "compare", deployment.shadow.version)
        return {"active": active.version, **found}

    async def _settle(self) -> None:
        """Wait for what was begun with answers that were given."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.settings.timeout)
