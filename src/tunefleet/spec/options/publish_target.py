"""Publishing targets as text: `hf://ORG/NAME` and `s3://BUCKET/PREFIX`. Does no I/O."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tunefleet.spec.base import BUCKET_URL, hub_id_error

_HUB: Final = re.compile(r"hf://([\w.-]+/[\w.-]+)/?", re.ASCII)
_BUCKET_NAMES: Final = (
    "A bucket name has 3 to 63 characters: lower-case letters, digits, dots and hyphens, and starts and ends with a "
    "letter or digit. Use s3://BUCKET/PREFIX."
)


class BucketPlace(NamedTuple):
    """A folder in a bucket."""

    name: str
    prefix: str


class TargetFault(NamedTuple):
    """Why a text is not a publishing target.

    Args:
        message: What is wrong, to follow the text.
        hint: What to write instead, as a sentence.
    """

    message: str
    hint: str


def hub_repository(text: str) -> str | None:
    """Return `ORG/NAME` of `hf://ORG/NAME`; `None` if it is another target."""
    found = _HUB.fullmatch(text)
    return None if found is None else found[1]


def bucket_place(text: str) -> BucketPlace | None:
    """Return bucket and prefix of `s3://BUCKET/PREFIX`; `None` if it is another target."""
    found = BUCKET_URL.fullmatch(text)
    return None if found is None else BucketPlace(found[1], (found[2] or "").strip("/"))


def target_fault(text: str) -> TargetFault | None:
    """Return why a URL is not a valid target; `None` if it is valid, or not a URL but a path."""
    repository = hub_repository(text)
    if repository is not None:
        error = hub_id_error(repository)
        return None if error is None else TargetFault(f"is not a valid Hub id: it {error}", "Use hf://ORG/NAME.")
    place = bucket_place(text)
    if place is not None:
        # `.` and `..` in a key are literal in S3, but not for most tools that list it.
        if place.prefix and {"", ".", ".."} & set(place.prefix.split("/")):
            return TargetFault(
                "is not a valid bucket URL", "Use s3://BUCKET/PREFIX, without empty parts and without .."
            )
        return None
    if text.startswith("s3://"):
        return TargetFault("is not a valid bucket URL", _BUCKET_NAMES)
    if "://" in text:
        return TargetFault("is not a publishing target", "Use hf://ORG/NAME, s3://BUCKET/PREFIX or a folder.")
    return None
