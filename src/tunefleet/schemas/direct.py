"""Messages about files that a worker sends to the object store itself, in parts."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from tunefleet.schemas.base import Message, ProcessBody

# So many links are given at once.
MOST_LINKS: Final = 64


class DirectOffer(Message):
    """Files may be sent to the object store.

    Args:
        least_bytes: Smaller ones pass through the server.
        required: Whether larger ones must not pass through the server, even where the worker cannot reach the store.
    """

    least_bytes: int
    required: bool = False


class DirectAsk(ProcessBody):
    """A file is to be sent."""

    size_bytes: int = Field(gt=0, le=2**62)


class DirectPlan(Message):
    """How a file is sent.

    Args:
        upload: Names the upload in what follows.
        part_bytes: Length of each part but the last.
        parts: How many there are; they are numbered from 1.
        here: Numbers of those that are at the store already.
    """

    upload: str
    part_bytes: int
    parts: int
    here: tuple[int, ...] = ()


class DirectLinksAsk(ProcessBody):
    """Links for some parts are wanted."""

    parts: tuple[int, ...] = Field(min_length=1, max_length=MOST_LINKS)


class DirectLink(Message):
    """Where to `PUT` a part, with which headers."""

    part: int
    url: str
    headers: dict[str, str] = Field(default_factory=dict)


class DirectLinks(Message):
    """Links for parts.

    Args:
        links: One for each part.
        good_s: How long they are good.
    """

    links: tuple[DirectLink, ...]
    good_s: int


class DirectGiveUp(ProcessBody):
    """The worker sends the file through the server instead.

    Args:
        why: In a sentence.
    """

    why: str = Field(max_length=500)
