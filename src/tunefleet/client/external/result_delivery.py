"""Delivers a task's result and files to the destination of its workflow file: a URL or a bucket.

`ssrf_guard` decides which addresses may be reached.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from tunefleet.client.external.interrupt import CancelToken
from tunefleet.client.external.ssrf_guard import SsrfGuard, shown
from tunefleet.client.throttle import Throttle
from tunefleet.errors import InputError, TooLargeError, UnreachableError
from tunefleet.schemas.worker_guide import ENVELOPE_NAME, ResultEnvelope

_PIECE_BYTES: Final = 1 << 20
_PERMANENT: Final = frozenset({400, 401, 403, 404, 405, 410, 411, 415, 422})
"""Statuses that a retry does not change."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where results are sent.

    Args:
        url: Receives the result; files go to `URL/TASK_ID/files`.
        method: HTTP method of the request with the result.
        headers: Headers of the requests.
        timeout_s: Idle timeout, and the time to respond after everything was sent.
    """

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0

    @property
    def timeout(self) -> httpx.Timeout:
        """The limits as httpx's type."""
        return httpx.Timeout(self.timeout_s, connect=min(10.0, self.timeout_s))


class HttpDelivery:
    """Sends results to one HTTP receiver.

    Args:
        allowed: Hosts and networks in private ranges that may be reached.
        throttle: Limits the transfer rate.
        stop: Cancels a running transfer.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        allowed: Sequence[str] = (),
        throttle: Throttle | None = None,
        stop: CancelToken | None = None,
    ) -> None:
        self._receiver = receiver
        self._stop = stop
        self._reach = SsrfGuard(allowed)
        self._throttle = throttle

    def result(self, envelope: ResultEnvelope) -> None:
        """Send a result.

        Raises:
            ForbiddenError: If the address is not allowed.
            InputError: If the receiver rejects it.
            UnreachableError: If the receiver does not respond, or cannot accept it now.
            Stopped: If it was cancelled.
        """
        body = envelope.model_dump_json().encode()
        if self._throttle is not None:
            self._throttle.take(len(body))
        headers = {"Content-Type": "application/json", **self._receiver.headers}
        url, method = self._receiver.url, self._receiver.method
        answer = self._sent(method, url, headers, body)
        _refuse(url, answer)

    def file(self, task_id: str, path: Path) -> None:
        """Send a file as multipart form data; raises as `result` does."""
        url = f"{self._receiver.url.rstrip('/')}/{task_id}/files"
        # The multipart body sets its own content type.
        headers = {name: value for name, value in self._receiver.headers.items() if name.lower() != "content-type"}
        boundary = f"tunefleet-{path.stat().st_mtime_ns:x}"
        head = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{path.name}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        tail = f"\r\n--{boundary}--\r\n".encode()
        # An explicit length: without it httpx would send a streamed body chunked, which some receivers refuse.
        length = len(head) + path.stat().st_size + len(tail)
        headers |= {"Content-Type": f"multipart/form-data; boundary={boundary}", "Content-Length": str(length)}
        pieces = _pieces(head, path, tail)
        content = self._throttle.paced(pieces) if self._throttle is not None else pieces
        _refuse(url, self._sent("POST", url, headers, content))

    def _sent(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | Iterator[bytes]
    ) -> httpx.Response:
        timeout = self._receiver.timeout
        return self._reach.send(method, url, headers=headers, timeout=timeout, content=content, stop=self._stop)


class BucketDelivery:
    """Writes results into a bucket: `PREFIX/TASK_ID/NAME`.

    Args:
        url: `s3://BUCKET/PREFIX`; the endpoint comes from this process's settings.
        throttle: Limits the transfer rate.
        stop: Cancels a running transfer.

    Raises:
        MachineError: If the required package is not installed.
    """

    def __init__(
        self,
        url: str,
        access_key: str,
        secret_key: str,
        *,
        throttle: Throttle | None = None,
        stop: CancelToken | None = None,
    ) -> None:
        from tunefleet.artifacts.publish import place_at

        self._place = place_at(url, access_key, secret_key)
        self._throttle = throttle
        self._stop = stop or CancelToken()

    def result(self, envelope: ResultEnvelope) -> None:
        """Write a result; replaces an older one.

        Raises:
            ForbiddenError: If the key may not write.
            NotFoundError: If the bucket does not exist.
            UnreachableError: If the service does not respond.
        """
        with tempfile.TemporaryDirectory(prefix="tunefleet-result-") as folder:
            path = Path(folder) / ENVELOPE_NAME
            path.write_text(envelope.model_dump_json(indent=1), encoding="utf-8")
            self.file(envelope.task_id, path)

    def file(self, task_id: str, path: Path) -> None:
        """Write a file; raises as `result` does."""
        self._place.put([(f"{task_id}/{path.name}", path)], self._sent, replace=True)

    def _sent(self, count: int) -> None:
        self._stop.check()
        if self._throttle is not None:
            self._throttle.take(count)


def _pieces(head: bytes, path: Path, tail: bytes) -> Iterator[bytes]:
    yield head
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
    yield tail


def _refuse(url: str, answer: httpx.Response) -> None:
    if answer.is_success:
        return
    status = answer.status_code
    sentence = f"{shown(url)} responded with status {status}."
    if status == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
        raise TooLargeError(sentence)
    if status in _PERMANENT or answer.is_redirect:
        raise InputError(sentence, hint="Check output.destination.")
    raise UnreachableError(sentence)
