"""The Jobs API of a Ray cluster: requests, and what its refusals mean."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

import httpx

from tunefleet.client import trust
from tunefleet.errors import ConflictError, InputError, UnreachableError

_MAX_WORDS: Final = 300
_UNAUTHENTICATED: Final = 401
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_SERVER: Final = 500
_WHERE: Final = "TUNEFLEET_RAY_ADDRESS is the address of its dashboard, such as http://head:8265."


class RayJobs:
    """Speaks to the dashboard of a Ray cluster, which serves the Jobs API. Use it from any thread.

    Args:
        address: Of the dashboard, such as `http://head:8265`.
        token: The cluster's token; None if it asks for none.
    """

    def __init__(self, address: str, token: str | None, *, timeout_s: float) -> None:
        self.address = address.rstrip("/")
        if not self.address.startswith(("http://", "https://")):
            raise InputError(
                f"TUNEFLEET_RAY_ADDRESS={address} is no address of a Ray dashboard.",
                hint="It begins with http:// or https://, such as http://head:8265.",
            )
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(
            base_url=self.address, headers=headers, timeout=timeout_s, **trust.options(self.address)
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def job(self, name: str) -> dict[str, Any] | None:
        """Return what Ray knows of a job; None if it knows none of that name."""
        answer = self._ask("GET", _job(name), absent=True)
        return None if answer is None else self._read(answer)

    def log(self, name: str, until: str) -> str:
        """Return all that a job has printed, or `until` alone if one of its lines begins so: then no more is read.

        Ray sends the whole log and knows no shorter answer; that of a job that has run for days is large.
        """
        sign, text = re.compile(rf"(?<!\\)\\n{re.escape(until)}"), ""
        with self._reached(), self._http.stream("GET", f"{_job(name)}/logs") as answer:
            if not answer.is_success:
                answer.read()
                self._heed(answer, absent=True)
                return ""
            for piece in answer.iter_text():
                begin, text = max(0, len(text) - len(until) - 3), text + piece
                if sign.search(text, begin) is not None:
                    return until
        return str(self._object(text).get("logs") or "")

    def submit(self, body: dict[str, Any]) -> bool:
        """Submit a job; returns whether it is a new one: not, if there is one of that name."""
        answer = self._send("POST", "/api/jobs/", json=body)
        if answer.status_code == httpx.codes.BAD_REQUEST and "already exists" in answer.text:
            return False
        self._judge(answer)
        self._read(answer)
        return True

    def stop(self, name: str) -> None:
        """End a job; nothing happens if there is none, or it is over."""
        self._ask("POST", f"{_job(name)}/stop", absent=True)

    def forget(self, name: str) -> None:
        """Delete what is known of a job that is over."""
        self._ask("DELETE", _job(name), absent=True)

    def store(self, package: str, content: bytes) -> None:
        """Keep a small file in the memory of the head; Ray throws it away ten minutes later."""
        path = f"/api/packages/gcs/{package}"
        self._ask("PUT", path, content=content)
        # Asked for, a package gets a time after which it goes if no job names it.
        self._ask("GET", path)

    def _ask(self, method: str, path: str, *, absent: bool = False, **sent: Any) -> httpx.Response | None:
        answer = self._send(method, path, **sent)
        return answer if self._heed(answer, absent=absent) else None

    def _heed(self, answer: httpx.Response, *, absent: bool) -> bool:
        """Whether what was asked about is there; raises what else an answer means."""
        if answer.status_code == _NOT_FOUND:
            # Another server than Ray's finds nothing there either.
            if "does not exist" not in answer.text:
                raise self._stranger()
            if absent:
                return False
        self._judge(answer)
        return True

    def _send(self, method: str, path: str, **sent: Any) -> httpx.Response:
        with self._reached():
            return self._http.request(method, path, **sent)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"No Ray cluster answers at {self.address}.",
                hint=_WHERE,
                detail=repr(error),
            ) from error

    def _judge(self, answer: httpx.Response) -> None:
        code = answer.status_code
        if answer.is_success:
            return
        if code in {_UNAUTHENTICATED, _FORBIDDEN}:
            said = "asks for a token" if code == _UNAUTHENTICATED else "refuses the token"
            raise ConflictError(
                f"The Ray cluster at {self.address} {said}.", hint="Set TUNEFLEET_RAY_TOKEN to the cluster's token."
            )
        words = _words(answer.text) or f"HTTP {code}"
        if code >= _SERVER:
            raise UnreachableError(f"The Ray cluster at {self.address} has a fault: {words}")
        raise ConflictError(f"The Ray cluster at {self.address} refuses: {words}")

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        return self._object(answer.text)

    def _object(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._stranger()
        return found

    def _stranger(self) -> ConflictError:
        return ConflictError(f"What answers at {self.address} is no Ray cluster.", hint=_WHERE)


def _job(name: str) -> str:
    return f"/api/jobs/{quote(name, safe='')}"


def _words(text: str) -> str:
    """Return the last line of a traceback, or of what else was answered."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_MAX_WORDS] if lines else ""
