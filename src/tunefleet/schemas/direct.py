"""Messages for multipart uploads from a worker directly to the object store."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from tunefleet.schemas.base import Message, ProcessBody

# Maximum number of signed URLs per request.
MOST_LINKS: Final = 64


class DirectOffer(Message):
    """Files may be uploaded directly to the object store.

    Args:
        least_bytes: Smaller files go through the server.
        required: Whether larger files must not go through the server, even if the worker cannot reach the store.
    """

    least_bytes: int
    required: bool = False


class DirectAsk(ProcessBody):
    """Request to upload a file."""

    size_bytes: int = Field(gt=0, le=2**62)


class DirectPlan(Message):
    """Upload plan of a file.

    Args:
        upload: Id of the upload.
        part_bytes: Size of each part except the last.
        parts: Number of parts, numbered from 1.
        here: Numbers of the parts that are already stored.
    """

    upload: str
    part_bytes: int
    parts: int
    here: tuple[int, ...] = ()


class DirectLinksAsk(ProcessBody):
    """Request for signed URLs of parts."""

    parts: tuple[int, ...] = Field(min_length=1, max_length=MOST_LINKS)


class DirectLink(Message):
    """URL and headers for the `PUT` of a part."""

    part: int
    url: str
    headers: dict[str, str] = Field(default_factory=dict)


class DirectLinks(Message):
    """Signed URLs of parts.

    Args:
        links: One per part.
        good_s: How long they are valid, in seconds.
    """

    links: tuple[DirectLink, ...]
    good_s: int


class DirectGiveUp(ProcessBody):
    """The worker uploads the file through the server instead.

    Args:
        why: The reason, in one sentence.
    """

    why: str = Field(max_length=500)
