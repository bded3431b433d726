"""Masks credentials in shipped text without changing its length, so that byte offsets remain valid."""

from __future__ import annotations

import re
from typing import Final

_USER: Final = re.compile(rb"(?<=//)[^\s/@]{1,512}(?=@)")
_SIGNED: Final = re.compile(
    rb"(?i)(?<=[?&;])(?P<name>[\w.-]{0,64}(?:signature|sig|token|api_?key|account_?key|secret)[\w.-]{0,64}=)(?P<value>[^\s&;'\"<>]{1,2048})"
)
_TUNEFLEET_KEYS: Final = re.compile(rb"\b(?:tf_[\w-]{40}|(?:att|camp)-[0-9a-f]{12}\.[0-9a-f]{32})(?![\w-])")

# Keys of Hugging Face and RunPod, which third-party programs may print.
_PROVIDER_KEYS: Final = re.compile(rb"\b(?:hf|rpa)_[A-Za-z0-9]{16,256}(?![\w-])")


def scrub_bytes(data: bytes) -> bytes:
    """Mask user names and passwords in URLs, signatures in query strings, and known types of keys."""
    # Substring tests first: they are faster than the regular expressions, and most text contains no credentials.
    if b"@" in data:
        data = _USER.sub(_stars, data)
    if b"=" in data:
        data = _SIGNED.sub(_starred_value, data)
    if b"tf_" in data or b"att-" in data or b"camp-" in data:
        data = _TUNEFLEET_KEYS.sub(_stars, data)
    if b"hf_" in data or b"rpa_" in data:
        data = _PROVIDER_KEYS.sub(_stars, data)
    return data


def scrub(text: str) -> str:
    """Mask credentials in a string."""
    return scrub_bytes(text.encode(errors="replace")).decode(errors="replace")


def _stars(match: re.Match[bytes]) -> bytes:
    return b"*" * len(match[0])


def _starred_value(match: re.Match[bytes]) -> bytes:
    return match["name"] + b"*" * len(match["value"])
