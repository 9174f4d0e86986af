"""A client of `calprompt serve`, made of the standard library alone."""

from __future__ import annotations

import http.client
import json
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from calprompt.errors import CalpromptError, SettingError

REPEATED = (429, 503)  # the server is busy, or the process that held the image was lost
LONGEST_WAIT = 30.0  # seconds before a request is repeated
PROBLEM = "problem+json"  # a 500 that is none comes from a proxy, such as Ray's, whose replica was lost

Image = str | Path | bytes


class ServerError(CalpromptError):
    """What a server refused, in its own words.

    Attributes:
        status: HTTP status code; 0 if there was no answer.
        request_id: Stands in the server's access log; None if it said none.
    """

    def __init__(self, message: str, status: int = 0, request_id: str | None = None) -> None:
        super().__init__(message)
        self.status, self.request_id = status, request_id


class Client:
    """Asks a server that `calprompt serve` started. Safe to use from several threads.

    A request that the server is too busy for is repeated after the time it says. What it refuses for good raises a
    `ServerError`. Answers are dictionaries, as `/openapi.json` describes them.

    Args:
        url: Of the server.
        token: That it needs, if any.
        model: Which of its models; the first one, unless given.
        timeout: Seconds to wait for an answer.
        tries: How often a request is sent at most.

    >>> client = Client("http://127.0.0.1:8000", token="a-secret-token", model="clothes")
    >>> client.address
    'http://127.0.0.1:8000/models/clothes/'

    With a server that runs:

        answer = client.predict("photo.jpg")
        answer["decision"], answer["class_name"], answer["probability"]
        client.feedback(answer, right=False, class_name="sandal")
    """

    def __init__(
        self, url: str, *, token: str | None = None, model: str | None = None, timeout: float = 60.0, tries: int = 6
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingError(f"must be an address such as http://127.0.0.1:8000, got {url!r}", parameter="url")
        self._parts, self._timeout, self._tries = parts, timeout, tries
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._path = parts.path.rstrip("/") + ("/" if model is None else f"/models/{quote(model, safe='')}/")
        self._local = threading.local()

    @property
    def address(self) -> str:
        """Below which it asks."""
        return f"{self._parts.scheme}://{self._parts.netloc}{self._path}"

    def predict(self, image: Image, **options: Any) -> dict[str, Any]:
        """The answer for an image.

        Args:
            image: A path, or the bytes of a file.
            **options: coverage, per_class, min_confidence, classes and top, as in the API.
        """
        name, data = _read(image)
        headers = {"Content-Type": "application/octet-stream", "X-Image-Name": quote(name)}
        return dict(self._ask("POST", f"v1/predict{_query(options)}", data, headers))

    def predict_many(self, images: Iterable[Image], *, at_a_time: int = 16, **options: Any) -> Iterator[dict[str, Any]]:
        """Answers in the order of the images; one that cannot be read has a `problem` instead.

        Args:
            images: Any number.
            at_a_time: Sent in one request.
            **options: As in `predict`.
        """
        every = iter(images)
        while batch := [_read(image) for image in islice(every, at_a_time)]:
            yield from self._ask("POST", f"v1/predict/batch{_query(options)}", *_form(batch, {}))["answers"]

    def feedback(
        self, answer: Mapping[str, Any], *, right: bool, class_name: str | None = None, image: Image | None = None
    ) -> dict[str, Any]:
        """Say that an answer was right or wrong.

        Args:
            answer: What `predict` returned.
            right: Whether its class is the true one.
            class_name: The true class, if it is another and known.
            image: The same image again, for a server that keeps images to fit again.
        """
        fields = {"id": answer["id"], "right": right} | ({} if class_name is None else {"class_name": class_name})
        if image is None:
            return self._post("v1/feedback", fields)
        texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in fields.items()}
        return dict(self._ask("POST", "v1/feedback", *_form([_read(image)], texts)))

    def undo(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Take feedback on an answer back; returns the state of the watch."""
        return self._post("v1/feedback/undo", {"id": answer["id"]})

    def model(self) -> dict[str, Any]:
        """Classes, promises, track record and limits."""
        return dict(self._ask("GET", "v1/model"))

    def watch(self) -> dict[str, Any]:
        """Whether the promise on errors still holds, and images are like those of the fit."""
        return dict(self._ask("GET", "v1/watch"))

    def models(self) -> list[dict[str, Any]]:
        """The models of the server, with their versions."""
        return list(self._ask("GET", "v1/models")["models"])

    def versions(self) -> dict[str, Any]:
        """The versions of the model, and which of them are in use."""
        return dict(self._ask("GET", "v1/versions"))

    def switch(self, version: str) -> dict[str, Any]:
        """Have another version answer, once it is loaded and tried."""
        return self._post("v1/versions", {"action": "switch", "version": version})

    def rollback(self) -> dict[str, Any]:
        """Have the version before answer again."""
        return self._post("v1/versions", {"action": "rollback"})

    def shadow(self, version: str | None) -> dict[str, Any]:
        """Have a version answer beside the active one, unseen; None: none."""
        return self._post("v1/versions", {"action": "shadow", "version": version})

    def comparison(self) -> dict[str, Any]:
        """Where the shadow version answers differently, and which of the two was right."""
        return dict(self._ask("GET", "v1/shadow"))

    def _post(self, path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        return dict(self._ask("POST", path, json.dumps(fields).encode(), headers))

    def _ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Any:
        """The JSON of an answer, after as many tries as it takes."""
        for attempt in range(1, self._tries + 1):
            is_last = attempt == self._tries
            try:
                response, data = self._send(method, path, body, {**self._headers, **(headers or {})})
            except (OSError, http.client.HTTPException) as error:
                if is_last or not _is_repeatable(method, path):  # it may have been done
                    raise ServerError(f"{self.address} does not answer: {error or type(error).__name__}") from error
                time.sleep(min(LONGEST_WAIT, 0.1 * 2**attempt))
                continue
            if response.status < 300:
                return json.loads(data)
            kind = response.headers.get("Content-Type", "")
            is_lost = response.status == 500 and PROBLEM not in kind and path.startswith("v1/predict")
            if is_last or not (response.status in REPEATED or is_lost):
                raise _error(response, data)
            time.sleep(min(LONGEST_WAIT, _seconds(response.headers.get("Retry-After", str(attempt)))))
        raise AssertionError("unreachable")

    def _send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """A response over the connection of this thread, which is opened again if the server has closed it."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            connection = self._local.connection = kind(
                self._parts.hostname or "", self._parts.port, timeout=self._timeout
            )
        is_used = connection.sock is not None
        if is_used and not _is_repeatable(method, path):  # the server may have closed it, or do so after it has read
            connection.close()
            is_used = False
        try:
            connection.request(method, self._path + path, body, dict(headers))
            response = connection.getresponse()
            return response, response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            closed = isinstance(error, BrokenPipeError | ConnectionResetError | http.client.RemoteDisconnected)
            if is_used and closed:  # perhaps while it was idle
                return self._send(method, path, body, headers)
            raise


def _is_repeatable(method: str, path: str) -> bool:
    """Whether a request may be sent again although the server may have done what it asks."""
    return method == "GET" or path.startswith("v1/predict")


def _seconds(retry_after: str | None) -> float:
    """Seconds to wait, from a number or a date."""
    try:
        return max(0.0, float(retry_after or 1))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(str(retry_after)).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 1.0


def _error(response: http.client.HTTPResponse, data: bytes) -> ServerError:
    try:
        text = str(json.loads(data)["detail"])
    except (ValueError, KeyError, TypeError):
        text = data[:200].decode("utf-8", "replace")
    return ServerError(f"{response.status}: {text}", response.status, response.headers.get("X-Request-Id"))


def _read(image: Image) -> tuple[str, bytes]:
    """Name and bytes of an image."""
    if isinstance(image, bytes):
        return "image", image
    path = Path(image).expanduser()
    try:
        return path.name, path.read_bytes()
    except OSError as error:
        raise CalpromptError(f"{path} cannot be read: {error.strerror or error}") from error


def _query(options: Mapping[str, Any]) -> str:
    shown = {name: str(value).lower() if isinstance(value, bool) else value for name, value in options.items()}
    return f"?{urlencode(shown, doseq=True)}" if shown else ""


def _form(images: Iterable[tuple[str, bytes]], fields: Mapping[str, str]) -> tuple[bytes, dict[str, str]]:
    """A form and its headers."""
    boundary = secrets.token_hex(16)
    parts = [(f'name="image"; filename="{quote(name)}"', data) for name, data in images]
    parts += [(f'name="{name}"', text.encode()) for name, text in fields.items()]
    head = f"--{boundary}\r\nContent-Disposition: form-data; "
    body = b"".join(f"{head}{names}\r\n\r\n".encode() + data + b"\r\n" for names, data in parts)
    return body + f"--{boundary}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={boundary}"}
