"""Requests that mean harm: malformed, mislabelled, contradictory, forged or far too long, and what they may be told."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass

from serve.serving import END, part, picture

FORM = "multipart/form-data; boundary=b"
CLOSED = 0  # the connection may be closed without a word


@dataclass(frozen=True)
class Case:
    """A request as bytes.

    Attributes:
        name: What is wrong with it.
        data: What is sent.
        statuses: Of the answer, one of these.
        end: Whether the client says afterwards that nothing more will come.
    """

    name: str
    data: bytes
    statuses: tuple[int, ...]
    end: bool = False


def request(
    target: str = "/v1/predict",
    body: bytes = b"",
    *headers: str,
    method: str = "POST",
    kind: str | None = "image/png",
    length: str | None = None,
    host: str | None = "127.0.0.1",
) -> bytes:
    """The bytes of a request; by default one that is answered."""
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"Host: {host}"] if host is not None else []
    lines += [f"Content-Type: {kind}"] if kind is not None else []
    if length is None and not any(line.lower().startswith("transfer-encoding") for line in headers):
        length = str(len(body))
    lines += [f"Content-Length: {length}"] if length else []
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + body


def chunked(*pieces: bytes) -> bytes:
    return request("/v1/predict", b"".join(pieces), "Transfer-Encoding: chunked")


def get(target: str, *headers: str, **changes: str | None) -> bytes:
    return request(target, b"", *headers, method="GET", kind=None, length="", **changes)  # type: ignore[arg-type]


def lengths() -> Iterator[Case]:
    """Lengths that are not those of the body."""
    image = picture()
    yield Case("length too small", request(body=image, length="100"), (422,))
    yield Case("length too large, then the end", request(body=image, length=str(len(image) + 9)), (400, CLOSED), True)
    for wrong in ("-1", "abc", "0x10", "1e3", "+5", "5 5", "5, 6", "١٢".encode().decode("latin-1"), "9" * 30):
        yield Case(f"length {wrong!r}", request(body=image, length=wrong), (400, 413))
    twice = request("/v1/predict", image, "Content-Length: 7")
    yield Case("two lengths", twice, (400,))
    yield Case("no length", request(body=b"", length=""), (422,))
    yield Case(
        "length and chunks", request("/v1/predict", b"0\r\n\r\n", "Transfer-Encoding: chunked", length="5"), (422, 400)
    )
    yield Case("a gigabyte declared", request(body=b"", length="1000000000"), (413,))
    yield Case("an exabyte declared", request(body=b"", length="1000000000000000000"), (413,))
    yield Case(
        "a gigabyte, after asking", request("/v1/predict", b"", "Expect: 100-continue", length="1000000000"), (413,)
    )
    yield Case("chunk of no size", chunked(b"zz\r\nabc\r\n0\r\n\r\n"), (400,))
    yield Case("chunk of negative size", chunked(b"-5\r\nabcde\r\n0\r\n\r\n"), (400,))
    yield Case("chunk without its end", chunked(b"5\r\nabcdefgh\r\n0\r\n\r\n"), (400,))
    yield Case("chunk of 2^64 bytes", chunked(b"FFFFFFFFFFFFFFFF\r\nabc"), (400, CLOSED), True)
    yield Case("chunk of 2^84 bytes", chunked(b"F" * 21 + b"\r\nabc"), (400,))
    yield Case("chunk with a long name", chunked(b"5;" + b"a" * 100_000 + b"\r\nabcde\r\n0\r\n\r\n"), (400, 422))
    yield Case("chunks that never end", chunked(b"5\r\nabcde\r\n"), (400, CLOSED), True)
    yield Case("chunks and endless trailers", chunked(b"0\r\n", b"X: y\r\n" * 50_000), (400,))
    yield Case("10,000 chunks of a byte", chunked(b"1\r\na\r\n" * 10_000, b"0\r\n\r\n"), (422,))
    yield Case("chunks beyond the limit", chunked(*[b"80000\r\n" + bytes(0x80000) + b"\r\n"] * 5, b"0\r\n\r\n"), (413,))
    for coding in ("gzip", "chunked, chunked", "identity", "xchunked"):
        yield Case(f"transfer coding {coding}", request("/v1/predict", b"", f"Transfer-Encoding: {coding}"), (400,))
    yield Case("zipped body", request("/v1/predict", bytes(50), "Content-Encoding: gzip"), (415, 422))


def lines() -> Iterator[Case]:
    """First lines that make no sense, or ask for what there is not."""
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HACK", "post"):
        yield Case(f"method {method}", request("/v1/predict", b"", method=method, kind=None), (405,))
    yield Case("method of 9,000 letters", request("/v1/predict", b"", method="A" * 9000), (400, 405))
    yield Case("CONNECT", b"CONNECT example.com:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", (400, 404, 405))
    for path in (
        "/../../../../etc/passwd", "/static/../app.py", "/static/%2e%2e/app.py", "/static/..%5capp.py", "/static/%00",
        "/static/page.js%00.png", "/static/", "/static//etc/passwd", "/static/C:%5Cwindows%5Cwin.ini", "/v1/predict/..",
        "/.git/config", "/docs", "/v1/../health", "/%ff%fe", "/static/%2e%2e%2f%2e%2e%2fapp.py", "/v1/model/",
        "http://evil.example/v1/model/x",
    ):  # fmt: skip
        yield Case(f"path {path}", get(path), (404, 403))
    yield Case("address of 100 KB", get("/" + "a" * 100_000), (400, 431))
    yield Case("options of 100 KB", get("/v1/model?classes=" + "a" * 100_000), (400, 431))
    yield Case("address not in ASCII", get("/é"), (400,))
    yield Case("no version", b"GET /\r\n\r\n", (400,))
    yield Case("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 403))
    yield Case("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(400), (400, CLOSED), True)
    yield Case("SSH", b"SSH-2.0-OpenSSH_9.6\r\n", (400, CLOSED), True)
    yield Case("noise", bytes(range(256)) * 8, (400,))
    yield Case("100,000 empty lines", b"\r\n" * 100_000, (400, CLOSED), True)
    yield Case("a websocket", get("/v1/watch/socket", "Upgrade: websocket", "Connection: Upgrade"), (404,))


def headers() -> Iterator[Case]:
    """Headers that are malformed, too many, or of somebody else."""
    yield Case("5,000 headers", get("/health", *["X: y"] * 5000), (400, 431))
    yield Case("header of 200 KB", get("/health", "X: " + "y" * 200_000), (400, 431))
    yield Case("header without a colon", get("/health", "nonsense"), (400,))
    yield Case("NUL in a header", get("/health", "X: a\0b"), (400,))
    yield Case("blank before a colon", get("/health", "X : y"), (400,))
    yield Case("no host", get("/health", host=None), (400,))
    yield Case("two hosts", get("/health", "Host: localhost"), (400,))
    for host in (
        "evil.example",
        "127.0.0.1.evil.example",
        "evil.example:8000",
        "",
        "[::1",
        "169.254.169.254",
        "é.example",
    ):
        yield Case(f"host {host!r}", get("/v1/model", host=host), (403, 400))
    for origin in ("http://evil.example", "null", "http://127.0.0.1.evil.example", "http://127.0.0.1:1", "file://", ""):
        yield Case(f"origin {origin!r}", request("/v1/predict", picture(), f"Origin: {origin}"), (403,))
    for kind in ("application/json", "text/html", "application/x-www-form-urlencoded", "multipart/mixed; boundary=b"):
        yield Case(f"type {kind}", request(body=picture(), kind=kind), (415,))
    for kind in ("video/mp4", "*/*", "image", "a" * 5000, "\x7f", "é/ü"):
        yield Case(f"type {kind[:20]!r}", request(body=picture(), kind=kind), (415, 400))
    yield Case("type of a drawing", request(body=b"<svg/>", kind="image/svg+xml"), (422,))


def forms() -> Iterator[Case]:
    """Forms that are malformed, endless or contradictory."""
    image = part("image", picture(), "a.png")

    def form(name: str, body: bytes, *statuses: int, kind: str = FORM, target: str = "/v1/predict") -> Case:
        return Case(name, request(target, body, kind=kind), statuses)

    yield form("no boundary", image + END, 400, kind="multipart/form-data")
    yield form("empty boundary", image + END, 400, kind="multipart/form-data; boundary=")
    yield form("another boundary", image + END, 400, kind="multipart/form-data; boundary=other")
    yield form("boundary of 10 KB", image + END, 400, kind="multipart/form-data; boundary=" + "b" * 10_000)
    yield form("no end", image, 400)
    yield form("cut in the image", image[: len(image) // 2], 400)
    yield form("cut in a header", b"--b\r\nContent-Dispo", 400)
    yield form("nothing at all", b"", 400)
    yield form("end only", END, 400, 422)
    yield form("no name", b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END, 400)
    yield form("no disposition", b"--b\r\n\r\nx\r\n" + END, 400)
    yield form("header of 1 MB", b"--b\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\nx\r\n" + END, 400)
    yield form("100,000 headers in a part", b"--b\r\n" + b"X: y\r\n" * 100_000 + b"\r\nx\r\n" + END, 400)
    yield form("4,000 parameters of a name", image.replace(b'"image"', b'"image"' + b";a=b" * 3900, 1) + END, 400)
    yield form("5,000 fields", b"".join([part("classes", b"a")] * 5000) + END, 400)
    yield form("5,000 images", b"".join([part("image", b"a", "a")] * 5000) + END, 413)
    yield form("9 images", image * 9 + END, 413, target="/v1/predict/batch")
    yield form("two images", image * 2 + END, 422)
    yield form("no image", part("coverage", b"0.9") + END, 422)
    yield form("no images", part("top", b"1") + END, 422, target="/v1/predict/batch")
    yield form("a form in a form", part("image", b"--b\r\n" + image + END, "a") + END, 400, 422)
    yield form("field of 100 KB", image + part("classes", b"a" * 100_000) + END, 400)
    yield form("unknown field", image + part("__proto__", b"1") + END, 422)
    yield form("script as a field", image + part("<script>alert(1)</script>", b"1") + END, 422)
    yield form(
        "1,050 classes", image + b"".join(part("classes", f"class {n}".encode()) for n in range(1050)) + END, 422
    )
    yield form("text as the image", part("image", b"hello") + END, 422)
    yield form("name of an encoding that runs for ever", image + part("classes", b"a-" + b"b" * 60_000) + END, 422,
               kind=FORM + "; charset=punycode")  # fmt: skip
    yield form("half a pair of surrogates", image + part("classes", b"\xed\xa0\x80") + part("classes", b"b") + END, 422)
    for name in ("coverage", "per_class", "min_confidence", "top"):
        yield form(f"{name} that is no number", image + part(name, b"\xff<b>") + END, 422)
    yield form("top of 5,000 digits", image + part("top", b"9" * 5000) + END, 422)
    yield form("coverage nan", image + part("coverage", b"nan") + END, 422)


def options() -> Iterator[Case]:
    """Options that make no sense."""
    for query in (
        "coverage=abc", "coverage=nan", "coverage=1e999", "coverage=-1", "coverage=2", "coverage=0.123", "coverage=",
        "per_class=maybe", "per_class=true", "min_confidence=inf", "min_confidence=-0.1", "min_confidence=1%2C5",
        "top=0", "top=-1", "top=1000000000", "top=" + "9" * 5000, "top=1.5", "top=%F0%9F%92%A9", "classes=",
        "classes=%00&classes=b", "classes=a&classes=a", "classes=%0Aa&classes=b", "classes=" + "a" * 201,
        "classes=a&classes=%E2%80%AEb", "classes=%20&classes=b", "classes=a%1B%5B31m&classes=b",
    ):  # fmt: skip
        yield Case(f"option {query[:40]}", request(f"/v1/predict?{query}", picture()), (422,))
    yield Case("classes of the model", get("/v1/model?classes=a&classes=a"), (422,))


def feedback() -> Iterator[Case]:
    """Feedback that is malformed, or on answers that were never given."""

    def sent(name: str, body: bytes, *statuses: int, kind: str = "application/json") -> Case:
        return Case(name, request("/v1/feedback", body, kind=kind), statuses)

    made = {"nonce": "0" * 16, "model": "0123456789abcdef", "image": "0" * 64, "decision": "answer"}
    made |= {"class_name": "ant", "promised": True}  # type: ignore[dict-item]
    payload = base64.urlsafe_b64encode(json.dumps(made).encode()).rstrip(b"=").decode()
    for name, text in {
        "unsigned": payload,
        "signed with nothing": payload + ".",
        "signed with zeros": payload + "." + "A" * 22,
        "signed with blanks": payload + ".      ",
        "signed in Unicode": payload + ".é\u202e",
        "empty": "",
        "a dot": ".",
        "dots": "..." * 100,
        "NUL": "\0",
        "half a pair": "\ud800.\udfff",
        "too long": "a" * 5000,
        "a path": "../../../etc/passwd",
    }.items():
        yield sent(f"receipt: {name}", json.dumps({"id": text, "right": True}).encode(), 422)
    for name, body in {
        "half": b'{"id": "a", "right"',
        "nothing": b"",
        "XML": b"<feedback/>",
        "bytes": b"\xff\xfe\xfd",
        "trailing": b'{"id": "a", "right": true} x',
        "single quotes": b"{'id': 'a'}",
        "deep lists": b"[" * 60_000,
        "deep objects": b'{"a":' * 12_000,
        "number of 50,000 digits": b'{"id": ' + b"9" * 50_000 + b"}",
    }.items():
        yield sent(f"JSON: {name}", body, 400)
    for name, body in {
        "a list": b"[]",
        "a word": b'"id"',
        "null": b"null",
        "not a number": b"NaN",
        "empty object": b"{}",
        "other types": b'{"id": 1, "right": "yes"}',
        "right as a number": b'{"id": "a", "right": 1}',
        "right as text": b'{"id": "a", "right": "true"}',
        "something more": b'{"id": "a", "right": true, "admin": true}',
        "class as a list": b'{"id": "a", "right": true, "class_name": ["a"]}',
        "class of 300 letters": b'{"id": "a", "right": false, "class_name": "' + b"a" * 300 + b'"}',
        "id as an object": b'{"id": {"$gt": ""}, "right": true}',
    }.items():
        yield sent(f"JSON: {name}", body, 422)
    yield sent("100 KB of JSON", b'{"id": "' + b"a" * 100_000 + b'"}', 413)
    yield sent("JSON as text", b"{}", 415, kind="text/plain")
    yield sent("JSON as a form of another kind", b"id=a&right=true", 415, kind="application/x-www-form-urlencoded")
    yield sent("form without an id", part("right", b"true") + END, 422, kind=FORM)
    yield sent("form with a forged id", part("right", b"true") + part("id", b"a.b") + END, 422, kind=FORM)
    yield sent("form with a wrong flag", part("right", b"maybe") + part("id", b"a.b") + END, 422, kind=FORM)


def requests() -> list[Case]:
    """All of them."""
    found = [case for group in (lengths, lines, headers, forms, options, feedback) for case in group()]
    assert len({case.name for case in found}) == len(found)
    return found
