"""Slow and abandoned images take nothing from others. benchmarks/serve_attacks.py measures the same, at full size."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calprompt.serve.decoder import Limits, View, decode_image
from serve import hostile_images, serving
from serve.hostile_requests import request
from serve.serving import Answer, Running, picture

SLOW = hostile_images.jpeg_of_fill_bytes(1_900_000)  # takes a second or more; time grows with its square


def ask_from(served: Running, address: str, data: bytes) -> Answer | None:
    with served.connect_from(address) as client:
        client.sendall(request("/v1/predict", data))
        return serving.read_answer(client)


def test_abandoned_images_are_given_up_at_once(tmp_path: Path) -> None:
    with (
        open(tmp_path / "log", "w") as log,
        serving.server(decoders=1, decode_timeout=60.0, timeout=60.0, log=log) as served,
    ):
        for _ in range(6):
            with suppress(OSError), served.connect() as client:
                client.sendall(request("/v1/predict", SLOW))
                time.sleep(0.1)
        for _ in range(3):
            served.check_health()
        assert serving.wait_until(lambda: len(served.decoders()) == 2), "none is left at work"
        assert serving.wait_until(lambda: _busy(served) == 0)
        assert (tmp_path / "log").read_text() == ""


def _busy(served: Running) -> int:
    """Images under way."""
    text = served.request("GET", "/metrics").body.decode()
    return int(float(text.split("\ncalprompt_images_under_way ")[1].split()[0]))


def test_slow_images_of_one_client_do_not_stop_another() -> None:
    with serving.server(decoders=2, decode_timeout=60.0, timeout=60.0) as served, ThreadPoolExecutor(6) as pool:
        slow = [pool.submit(ask_from, served, "127.0.0.2", SLOW) for _ in range(6)]
        for _ in range(5):
            found = ask_from(served, "127.0.0.1", picture())
            assert found is not None
            assert found.status == 200, found.body
        assert not all(each.done() for each in slow), "one goes on beside the others"
        served.process.kill()


def test_an_image_has_a_deadline_and_its_process_is_replaced() -> None:
    with serving.server(decoders=1, decode_timeout=1.0, max_body="10MB", max_memory="100MB") as served:
        before = set(served.decoders())
        found = served.predict(hostile_images.jpeg_of_fill_bytes(8_000_000))
        assert found.status == 422
        assert "takes longer than 1 s to decode" in found.detail
        assert serving.wait_until(lambda: len(served.decoders()) == 2 and set(served.decoders()) != before)
        served.check_health()


@pytest.mark.parametrize("name", ["fill bytes", "chunks", "comment"])
def test_files_that_are_slow_to_open_do_not_block_others(name: str) -> None:
    data = {
        "fill bytes": SLOW,
        "chunks": hostile_images.png(50, 50, *[hostile_images.chunk(b"abCd", b"")] * 150_000),
        "comment": b"P6\n#" + b"a" * 1_900_000 + b"\n2 2 255\n" + bytes(12),
    }[name]
    with serving.server(decoders=1, decode_timeout=2.0, queue=64) as served:
        attackers = [threading.Thread(target=served.predict, args=[data]) for _ in range(4)]
        for thread in attackers:
            thread.start()
        statuses = [served.predict().status for _ in range(5)]
        for thread in attackers:
            thread.join()
        assert statuses == [200] * 5


def test_a_large_jpeg_is_decoded_at_reduced_size_and_looks_the_same() -> None:
    gradient = np.linspace(0, 255, 5000, dtype=np.uint8)
    pixels = np.stack([np.broadcast_to(gradient, (3600, 5000)), np.full((3600, 5000), 90, np.uint8)], axis=-1)
    pixels = np.concatenate([pixels, pixels[:, ::-1, :1]], axis=-1)
    stream = hostile_images.io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=95)
    settings = View(64, "bicubic", "shortest", False), Limits(("JPEG", "PNG"), 20_000_000)
    facts, found = decode_image(stream.getvalue(), *settings)
    assert facts == {"width": 5000, "height": 3600, "format": "JPEG"}
    _, small = decode_image(picture("PNG"), *settings)
    assert len(found) == len(small) == 64 * 64 * 3
    whole = Image.open(stream).resize((88, 64), Image.Resampling.BICUBIC).crop((12, 0, 76, 64))
    difference = np.abs(np.frombuffer(found, np.uint8).astype(int) - np.asarray(whole).astype(int).ravel())
    assert difference.max() <= 4


def test_other_formats_have_half_the_pixels() -> None:
    settings = View(32, "bicubic", "shortest", False), Limits(("JPEG", "PNG"), 4_000_000)
    facts, _ = decode_image(hostile_images.real_png(1600), *settings)
    assert facts == {"reason": "1600 by 1600 pixels, and the limit for PNG is 2 million pixels"}
