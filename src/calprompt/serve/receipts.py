"""Receipts: what the server answered, signed, so that a client can mark the answer later without the server keeping it.

    receipt = base64url(JSON of the answer) . base64url(HMAC-SHA256 of it)

Any process that knows the secret can read it back, so replicas need not remember each other's answers, and nobody can
mark an answer that was never given.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from dataclasses import asdict, dataclass

from calprompt.errors import SettingError

LONGEST = 4096  # characters


@dataclass(frozen=True)
class Receipt:
    """An answer that was given.

    Attributes:
        nonce: Differs from receipt to receipt.
        model: Fingerprint of the model that answered.
        image: sha256 of the pixels that the model saw.
        decision: "answer", "unsure" or "none of these".
        class_name: The most probable class.
        promised: Whether the promise on errors stood behind it.
    """

    nonce: str
    model: str
    image: str
    decision: str
    class_name: str
    promised: bool

    @classmethod
    def of(cls, model: str, pixels: bytes, decision: str, class_name: str, promised: bool) -> Receipt:
        """For an answer about an image."""
        return cls(secrets.token_hex(8), model, hashlib.sha256(pixels).hexdigest(), decision, class_name, promised)


class Signer:
    """Signs receipts and reads them back.

    Args:
        secret: Shared by all processes that serve one model.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, receipt: Receipt) -> str:
        """The receipt as clients get it."""
        body = _encode(json.dumps(asdict(receipt), ensure_ascii=False, separators=(",", ":")).encode())
        return f"{body}.{_encode(self._mac(body))}"

    def read(self, text: str) -> Receipt:
        """The receipt that a client gave back."""
        body, _, signature = text.partition(".")
        own = _encode(self._mac(body))
        if len(text) > LONGEST or not hmac.compare_digest(signature.encode("utf-8", "replace"), own.encode()):
            raise SettingError(
                "id is not of an answer that this server gave, or it was started anew since; send the image again"
            )
        return Receipt(**json.loads(_decode(body)))

    def _mac(self, body: str) -> bytes:
        return hmac.new(self._secret, body.encode("utf-8", "replace"), hashlib.sha256).digest()[:16]


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
