"""The text that Prometheus reads."""

from __future__ import annotations

import asyncio

from prometheus_client.exposition import choose_encoder

from tunefleet.errors import NotFoundError
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.observability.gauges import Gauges


async def written(core: Core, accept: str) -> tuple[bytes, str]:
    """Return the figures of this moment, and their content type.

    Args:
        core: The server.
        accept: What the asker takes: OpenMetrics, or the text that came before it.

    Raises:
        NotFoundError: If nothing is counted here.
    """
    if core.meters is None:
        raise NotFoundError(
            "This server counts nothing.", hint="Its operator has set TUNEFLEET_METRICS=off; leave that variable out."
        )
    await core.state(Gauges).refresh(core)
    encode, kind = choose_encoder(accept)
    # A thousand series are some milliseconds of pure Python.
    return await asyncio.to_thread(encode, core.meters.registry), kind
