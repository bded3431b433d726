"""The documents that v1's clients post: YAML as it is, or a JSON text or object around it."""

from __future__ import annotations

import json

from tunefleet.errors import InputError

_JSON = "application/json"


def document(body: bytes, content_type: str | None) -> str:
    """Return the YAML text of a request.

    Args:
        body: The request's body.
        content_type: `application/json` for a JSON string, or an object with `yaml`; any other is YAML.

    Raises:
        InputError: If there is none in it.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"The body is not UTF-8: byte {error.start} cannot be read.") from None
    if (content_type or "").partition(";")[0].strip().lower() == _JSON:
        text = _unwrapped(text)
    if not text.strip():
        raise InputError("The body is empty.", hint="Send the document as YAML.")
    return text


def _unwrapped(text: str) -> str:
    try:
        found = json.loads(text) if text.strip() else ""
    except ValueError as error:
        raise InputError(f"The body is not JSON: {error}.", hint='Send {"yaml": "…"}, or YAML as it is.') from None
    inner = found.get("yaml") if isinstance(found, dict) else found
    if not isinstance(inner, str):
        raise InputError("The body has no document.", hint='Send {"yaml": "…"}, a JSON string, or YAML as it is.')
    return inner
