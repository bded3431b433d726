"""The requests of endpoints in memory, and the replicas that answer them. No I/O.

In memory only, and bounded: a server restart ends open requests, but not the replicas.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from tunefleet.schemas.endpoints import RelayedRequest, ResponseFrame, TokenUsage

MAX_CALLS: Final = 1024
"""Maximum number of open requests of an endpoint."""
MAX_BODIES: Final = 64 << 20
"""Maximum size of the open requests of an endpoint, in bytes."""
FULL: Final = 256 << 10
"""Unread bytes of a response after which the worker pauses it."""
_OVERFLOW: Final = 16 << 20
_MAX_SENT: Final = 4 << 20
RETRY_S: Final = 60.0
"""How long a request waits for another replica when its own was lost."""
# A replica without a held poll is gone after this time; between two polls it is shorter.
_GONE_S: Final = 3.0
# How long a replica that is gone may come back to finish the responses that it has begun.
_SILENT_S: Final = 15.0


@dataclass(slots=True)
class Call:
    """A request, and its response as it arrives."""

    id: str
    path: str
    body: bytes
    key_id: str
    asked_at: float
    deadline: float
    """Until when it waits for a replica; monotonic."""
    begun_at: float | None = None
    moved_at: float = 0.0
    """When the last frame arrived."""
    taken: bool = False
    disconnected: bool = False
    """Whether the client has disconnected."""
    status: int | None = None
    content_type: str = "application/json"
    ended: bool = False
    error: str | None = None
    usage: TokenUsage | None = None
    unread: int = 0
    _data: deque[bytes] = field(default_factory=deque)

    @property
    def begun(self) -> bool:
        """Whether a part of the response has arrived: it cannot be given to another replica."""
        return self.status is not None

    def put(self, frame: ResponseFrame, now: float) -> None:
        """Append the next part; parts after the end are ignored."""
        if self.ended:
            return
        self.moved_at = now
        if frame.status is not None:
            self.begun_at = now
            self.status, self.content_type = frame.status, frame.content_type or self.content_type
            # It was kept only in case another replica has to answer.
            self.body = b""
        if frame.data:
            self._data.append(frame.data)
            self.unread += len(frame.data)
        if self.unread > _OVERFLOW:
            self.fail("The response is not being read.")
        if frame.error is not None:
            self.fail(frame.error)
        if frame.end:
            self.ended, self.usage = True, frame.usage

    def fail(self, why: str) -> None:
        """End the response with an error."""
        self.ended, self.error = True, why

    def take(self) -> bytes:
        """Return the bytes since the last call."""
        data, self.unread = b"".join(self._data), 0
        self._data.clear()
        return data

    def again(self, until: float) -> None:
        """Wait for another replica."""
        self.taken, self.deadline = False, max(self.deadline, until)


@dataclass(slots=True)
class Replica:
    """A task that serves an endpoint.

    Args:
        generation: Number of its workflow; of two generations with a loaded model, the newer one gets the requests.
    """

    task_id: str
    worker_id: str
    generation: int
    attempt_id: str = ""
    seen_at: float = 0.0
    polls: int = 0
    ready: bool = False
    models: tuple[str, ...] = ()
    ending: bool = False
    calls: dict[str, Call] = field(default_factory=dict)

    def connected(self, now: float) -> bool:
        """Return whether its worker holds a poll, or will send the next one in a moment."""
        return self.polls > 0 or now - self.seen_at < _GONE_S

    def serves(self, now: float) -> bool:
        """Return whether it accepts requests."""
        return self.ready and not self.ending and self.connected(now)

    def silent(self, now: float) -> bool:
        """Return whether the responses that it has begun are lost."""
        return not self.connected(now) and now - self.seen_at > _SILENT_S


@dataclass(slots=True)
class Endpoint:
    """An endpoint with its replicas and the requests that wait for one."""

    seq: int
    project: str
    name: str
    wait_s: float
    requests_per_minute: int | None = None
    ttl_s: float | None = None
    used_at: float = 0.0
    """When the last request began or ended, or a replica became ready; monotonic."""
    replicas: dict[str, Replica] = field(default_factory=dict)
    waiting: dict[str, Call] = field(default_factory=dict)

    @property
    def calls(self) -> list[Call]:
        """All open requests."""
        return [*self.waiting.values(), *(call for each in self.replicas.values() for call in each.calls.values())]

    def serving(self, now: float) -> list[Replica]:
        """Return the replicas that get requests: the newest generation with a loaded model."""
        ready = [each for each in self.replicas.values() if each.serves(now)]
        newest = max((each.generation for each in ready), default=0)
        return [each for each in ready if each.generation == newest]

    def is_idle(self, now: float) -> bool:
        """Return whether no request has come for its time to live."""
        if self.ttl_s is None or self.calls or not any(each.serves(now) for each in self.replicas.values()):
            return False
        return now - self.used_at > self.ttl_s

    def retire_older(self, now: float) -> None:
        """End the replicas that a newer generation has replaced; they finish their open requests."""
        newest = max((each.generation for each in self.serving(now)), default=0)
        for each in self.replicas.values():
            each.ending = each.ending or each.generation < newest

    def assign(self, now: float) -> list[Replica]:
        """Give the waiting requests to the replicas with the fewest open ones; return the changed replicas."""
        serving = self.serving(now)
        changed: dict[str, Replica] = {}
        while serving and self.waiting:
            call = self.waiting.pop(next(iter(self.waiting)))
            target = min(serving, key=lambda each: len(each.calls))
            target.calls[call.id] = call
            changed[target.task_id] = target
        return list(changed.values())

    def recover(self, now: float) -> list[Call]:
        """Take the requests back from replicas that are gone; return those that have failed."""
        failed: list[Call] = []
        for replica in list(self.replicas.values()):
            if not replica.connected(now):
                failed += self.take_back(replica, list(replica.calls), now, begun=replica.silent(now))
            if replica.silent(now) and not replica.calls:
                del self.replicas[replica.task_id]
        return failed

    def take_back(self, replica: Replica, ids: list[str], now: float, *, begun: bool = True) -> list[Call]:
        """Let another replica answer these requests.

        Args:
            begun: Whether those whose response has begun fail; otherwise they stay.

        Returns:
            The failed ones.
        """
        failed: list[Call] = []
        for call_id in ids:
            call = replica.calls[call_id]
            if call.begun and not begun:
                continue
            del replica.calls[call_id]
            if call.begun:
                call.fail("The model's worker was lost during the response.")
                failed.append(call)
            elif not call.disconnected:
                # Long enough that the task can start on another worker.
                call.again(now + max(self.wait_s, RETRY_S))
                self.waiting[call_id] = call
        return failed

    def outgoing(self, replica: Replica) -> list[RelayedRequest]:
        """Return the requests to send to a replica's worker now."""
        found: list[RelayedRequest] = []
        size = 0
        for call in replica.calls.values():
            if call.taken or call.disconnected:
                continue
            if found and size + len(call.body) > _MAX_SENT:
                break
            call.taken, size = True, size + len(call.body)
            found.append(RelayedRequest.model_construct(id=call.id, path=call.path, body=call.body))
        return found
