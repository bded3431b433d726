"""Calls about files that a worker sends to the server's object store itself."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.client.call import Call, model, nothing, path
from tunefleet.client.routes import workflow_routes
from tunefleet.schemas.api import FileEntry
from tunefleet.schemas.direct import DirectAsk, DirectGiveUp, DirectLinks, DirectLinksAsk, DirectPlan
from tunefleet.schemas.worker_link import Cursor


def plan(entry: FileEntry) -> Call[DirectPlan]:
    """Begin to send a file to the object store, or go on with it."""
    body = DirectAsk(size_bytes=entry.size_bytes)
    return Call("POST", path("blobs", entry.digest, "direct"), model(DirectPlan), body=body)


def links(digest: str, upload: str, parts: Sequence[int]) -> Call[DirectLinks]:
    """Return links that take parts of a file."""
    where = path("blobs", digest, "direct", upload, "links")
    return Call("POST", where, model(DirectLinks), body=DirectLinksAsk(parts=tuple(parts)))


def complete(entry: FileEntry, upload: str) -> Call[Cursor]:
    """Let the server read a file back and keep it."""
    where = path("blobs", entry.digest, "direct", upload, "complete")
    patience_s = workflow_routes.ANSWER_S + entry.size_bytes / workflow_routes.PASSED_ON_BYTES_PER_S
    # Not repeated blindly: after a break the server is asked first whether it has it.
    return Call("POST", where, model(Cursor), repeatable=False, read_timeout_s=patience_s)


def give_up(digest: str, upload: str, why: str) -> Call[None]:
    """Abort an upload to the object store, and tell why."""
    where = path("blobs", digest, "direct", upload, "give-up")
    return Call("POST", where, nothing, body=DirectGiveUp(why=why), repeatable=False)
