"""What the server's secret signs: tokens and links that prove that this server made them, and need no row."""

from __future__ import annotations

import hashlib
import hmac


def seal(server_secret: bytes, purpose: str, *about: str) -> str:
    """Return the HMAC-SHA256 of something, in hex.

    Args:
        server_secret: The server's.
        purpose: What the seal is for: no other purpose has the same, and no id of an attempt begins with it, since the
            secret signs these bare.
        about: What it seals; no line break in any of it.
    """
    return hmac.new(server_secret, "\n".join((purpose, *about)).encode(), hashlib.sha256).hexdigest()
