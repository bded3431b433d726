"""Direct uploads to a Google bucket: each part is an object, and the service composes them to one.

A resumable session would accept one piece after another, with a link that is valid for a week; parts that are objects
are sent in parallel, with links that are valid for minutes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from google.api_core.exceptions import NotFound

from tunefleet.artifacts.direct import Arrivals, PartLink
from tunefleet.artifacts.remote import TYPE
from tunefleet.fsutil import CHUNK_BYTES

# The service composes at most this many objects per request.
_AT_ONCE: Final = 32
_WHOLE: Final = "whole"
_TIMEOUT_S: Final = 300


class GcsArrivals(Arrivals):
    """Direct uploads to a bucket.

    Args:
        sign: Returns a link to `PUT` an object with headers, valid for a number of seconds.
    """

    def __init__(
        self, client: Any, bucket: Any, place: str, sign: Callable[[Any, dict[str, str], int], str], retry: Any
    ) -> None:
        self._client, self._bucket, self._place, self._sign = client, bucket, place, sign
        self._patience: dict[str, Any] = {"timeout": _TIMEOUT_S, "retry": retry}

    def begin(self, name: str) -> str:  # noqa: ARG002 only S3 has upload ids
        """Do nothing: each part is an object."""
        return ""

    def parts(self, name: str, ref: str) -> dict[int, int] | None:  # noqa: ARG002 only S3 has upload ids
        """Return the stored parts; `None` if they are composed already."""
        found = {each.name.rpartition("/")[2]: int(each.size) for each in self._listed(f"{name}/")}
        if _WHOLE in found:
            return None
        return {int(number): size for number, size in found.items() if number.isdigit()}

    def link(self, name: str, ref: str, number: int, size_bytes: int, good_s: int) -> PartLink:  # noqa: ARG002 only S3 has upload ids
        """Return a link that accepts one part of exactly this size."""
        headers = {"x-goog-content-length-range": f"{size_bytes},{size_bytes}"}
        return PartLink(self._sign(self._blob(f"{name}/{number:08d}"), headers, good_s), headers)

    def assemble(self, name: str, ref: str, count: int) -> None:  # noqa: ARG002 only S3 has upload ids
        """Compose the parts, in several levels if there are many."""
        level, blobs = 0, [self._blob(f"{name}/{number:08d}") for number in range(1, count + 1)]
        while len(blobs) > _AT_ONCE:
            groups = [blobs[start : start + _AT_ONCE] for start in range(0, len(blobs), _AT_ONCE)]
            blobs = [self._compose(f"{name}/of-{level}-{at}", group) for at, group in enumerate(groups)]
            level += 1
        self._compose(f"{name}/{_WHOLE}", blobs)

    def version(self, name: str) -> tuple[str, int]:
        """Return generation and size of the object."""
        blob = self._blob(f"{name}/{_WHOLE}")
        blob.reload(**self._patience)
        return str(blob.generation), int(blob.size)

    def read(self, name: str, version: str) -> Iterator[bytes]:
        """Yield the object's content."""
        blob = self._blob(f"{name}/{_WHOLE}")
        with blob.open("rb", chunk_size=16 * CHUNK_BYTES, if_generation_match=int(version)) as file:
            while piece := file.read(CHUNK_BYTES):
                yield piece

    def copy(self, name: str, version: str, key: str) -> None:
        """Copy the object within the service, in as many steps as needed."""
        source, target, token = self._blob(f"{name}/{_WHOLE}"), self._bucket.blob(key), None
        while True:
            token, _, _ = target.rewrite(source, token=token, if_source_generation_match=int(version), **self._patience)
            if token is None:
                return

    def discard(self, name: str, ref: str) -> None:  # noqa: ARG002 only S3 has upload ids
        """Delete the parts and the composed objects."""
        for each in list(self._listed(f"{name}/")):
            with contextlib.suppress(NotFound):
                each.delete(**self._patience)

    def old(self, limit: float) -> Iterator[tuple[str, str]]:
        """Yield uploads with an old object."""
        for each in self._listed(""):
            if each.updated.timestamp() <= limit:
                yield each.name.removeprefix(f"{self._place}/").partition("/")[0], ""

    def _compose(self, name: str, blobs: list[Any]) -> Any:
        made = self._blob(name)
        made.content_type = TYPE
        made.compose(blobs, **self._patience)
        return made

    def _listed(self, begin: str) -> Iterator[Any]:
        yield from self._client.list_blobs(self._bucket, prefix=f"{self._place}/{begin}", **self._patience)

    def _blob(self, name: str) -> Any:
        return self._bucket.blob(f"{self._place}/{name}")
