"""Batches take what is there, keep variants apart, and pass on what goes wrong; the door is closed when it is full."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from calprompt.serve.admission import Admission
from calprompt.serve.engine import Batcher
from calprompt.serve.problems import ProblemError


def test_images_that_wait_for_the_model_form_one_batch() -> None:
    seen: list[tuple[Hashable, list[Any]]] = []
    free = threading.Event()

    def work(key: Hashable, items: Sequence[Any]) -> list[Any]:
        seen.append((key, list(items)))
        free.wait(10)
        return [(key, item) for item in items]

    async def scenario() -> list[Any]:
        batcher = Batcher(work, 3)
        await batcher.start()
        first = asyncio.create_task(batcher.submit("a", 0))
        while not seen:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(batcher.submit("b" if n == 2 else "a", n)) for n in range(1, 7)]
        await asyncio.sleep(0.01)
        others[2].cancel()  # nobody waits for it any more: it takes no place in a batch
        await asyncio.sleep(0.01)
        free.set()
        results = await asyncio.gather(first, *others, return_exceptions=True)
        await batcher.close()
        return results

    results = asyncio.run(scenario())
    assert seen == [("a", [0]), ("a", [1, 4, 5]), ("b", [2]), ("a", [6])]
    assert [each for each in results if not isinstance(each, BaseException)] == [
        ("a", 0), ("a", 1), ("b", 2), ("a", 4), ("a", 5), ("a", 6),
    ]  # fmt: skip


def test_an_error_reaches_the_whole_batch_and_the_next_batch_works() -> None:
    def work(key: Hashable, items: Sequence[Any]) -> list[Any]:
        if "bad" in items:
            raise RuntimeError("no")
        return list(items)

    async def scenario() -> tuple[Any, Any]:
        batcher = Batcher(work, 1)
        await batcher.start()
        bad, good = await asyncio.gather(batcher.submit(1, "bad"), batcher.submit(1, "good"), return_exceptions=True)
        await batcher.close()
        return bad, good

    bad, good = asyncio.run(scenario())
    assert isinstance(bad, RuntimeError)
    assert good == "good"


def test_clients_take_turns_in_a_batch() -> None:
    seen: list[list[Any]] = []
    free = threading.Event()

    def work(key: Hashable, items: Sequence[Any]) -> list[Any]:
        seen.append(list(items))
        free.wait(10)
        return list(items)

    async def scenario() -> None:
        batcher = Batcher(work, 2)
        await batcher.start()
        tasks = [asyncio.create_task(batcher.submit("k", "first"))]
        while not seen:
            await asyncio.sleep(0.001)
        tasks += [asyncio.create_task(batcher.submit("k", n, "greedy")) for n in range(4)]
        tasks += [asyncio.create_task(batcher.submit("k", "other", "modest"))]
        await asyncio.sleep(0)
        free.set()
        await asyncio.gather(*tasks)
        await batcher.close()

    asyncio.run(scenario())
    assert seen == [["first"], [0, "other"], [1, 2], [3]]


def test_a_full_queue_refuses_images_until_there_is_room() -> None:
    admission = Admission(images=4, size=100, rate=lambda: 2.0)
    with admission.ticket("a") as first:
        first.take(images=2, size=60)
        with admission.ticket("b") as second, admission.ticket("a") as third:
            second.take(images=1)
            third.take(images=1)
            with pytest.raises(ProblemError, match="4 of 4 images, 1 of them yours") as full:
                second.take(images=1)
            assert (full.value.status, full.value.headers["Retry-After"]) == (429, "2")
            with pytest.raises(ProblemError, match="fill the memory"):
                second.take(size=41)
            second.take(size=40)
        assert (admission.images, admission.bytes) == (2, 60)
    assert (admission.images, admission.bytes) == (0, 0)


def test_one_client_leaves_room_for_others() -> None:
    admission = Admission(images=4, size=100, rate=lambda: 2.0)
    with admission.ticket("a") as first, admission.ticket("b") as second:
        first.take(images=3, size=75)
        with pytest.raises(ProblemError, match="3 of them yours"):
            first.take(images=1)
        with pytest.raises(ProblemError, match="fill the memory"):
            first.take(size=1)
        second.take(images=1, size=25)


def test_the_slowest_sender_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("calprompt.serve.admission.time.monotonic", lambda: now[0])
    admission = Admission(images=4, size=100, rate=lambda: 2.0)
    dropped: list[str] = []
    with admission.ticket("slow") as slow, admission.ticket("faster") as faster, admission.ticket("new") as new:
        for ticket, size in ((slow, 30), (faster, 60)):
            ticket.on_drop = lambda ticket=ticket: dropped.append(ticket.client)  # type: ignore[misc]
            ticket.take(size=size)
        now[0] = 5.0
        new.on_drop = lambda: None
        new._start = now[0]
        new.take(size=30)
        assert dropped == ["slow"]
        assert admission.bytes == 90
