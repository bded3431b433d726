"""Bodies of requests to the agent: bounded before they are read, and JSON in the strict sense.

A config has some kilobytes. What is larger is refused before it is in memory; `NaN` and the like are not JSON, and
would quietly become nothing on their way into a spec.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

import orjson
from fastapi import HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute

from tunefleet.agent import auth

MAX_BYTES: Final = 4 << 20


class _Bounded(Request):
    """A request whose body is read up to a limit."""

    async def body(self) -> bytes:
        """Return the body.

        Raises:
            HTTPException: 413 if it is over the limit.
        """
        if not hasattr(self, "_body"):
            parts, size = [], 0
            async for part in self.stream():
                size += len(part)
                if size > MAX_BYTES:
                    raise HTTPException(413, f"The body has more than {MAX_BYTES >> 20} MiB.")
                parts.append(part)
            self._body = b"".join(parts)
        return self._body

    async def json(self) -> Any:
        """Return what the body says; raises a `JSONDecodeError` if it is no JSON."""
        return orjson.loads(await self.body())


class Route(APIRoute):
    """A route of the agent: who asks is known before a byte of the body is read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Make the handler, for requests of who may ask, with a bounded body."""
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            await run_in_threadpool(auth.check, request)
            return await handle(_Bounded(request.scope, request.receive))

        return bounded
