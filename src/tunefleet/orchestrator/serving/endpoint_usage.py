"""Usage of endpoints by key and day, and rate limits of keys."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from tunefleet.db.repositories import endpoints
from tunefleet.db.repositories.endpoints import Usage, UsageKey
from tunefleet.errors import TooManyError
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.serving.calls import Call, Endpoint

FLUSH_S: Final = 5.0
"""How often the counts are stored; a crash of the server loses those of the last seconds."""
# Rate limits that are remembered, to bound memory; the least recent ones are dropped.
_MAX_BUCKETS: Final = 10_000


@dataclass(slots=True)
class Counts:
    """What has not been stored yet, and the rate limits: endpoint and key → requests left, at a time."""

    usage: dict[UsageKey, Usage] = field(default_factory=dict)
    buckets: OrderedDict[tuple[int, str], tuple[float, float]] = field(default_factory=OrderedDict)


def count_rate(core: ServerContext, endpoint: Endpoint, key_id: str, now: float) -> None:
    """Count a request against the rate limit of its key (a token bucket of one minute).

    Raises:
        TooManyError: If the key exceeds it; the request does not count.
    """
    limit = endpoint.requests_per_minute
    if limit is None:
        return
    buckets = core.state(Counts).buckets
    left, at = buckets.pop((endpoint.seq, key_id), (float(limit), now))
    left = min(float(limit), left + (now - at) * limit / 60)
    allowed = left >= 1
    buckets[endpoint.seq, key_id] = (left - 1 if allowed else left, now)
    while len(buckets) > _MAX_BUCKETS:
        buckets.popitem(last=False)
    if not allowed:
        raise TooManyError(
            f"The key has exceeded {limit} requests per minute to the endpoint {endpoint.name}.",
            retry_after_s=math.ceil((1 - left) * 60 / limit),
        )


def count(core: ServerContext, endpoint: Endpoint, call: Call) -> None:
    """Count a request that has ended, if it got a response."""
    _measure(core, endpoint, call)
    if not call.begun:
        return
    day = datetime.fromtimestamp(core.clock.wall(), UTC).date().isoformat()
    key, counts = UsageKey(endpoint.seq, call.key_id, day), core.state(Counts).usage
    before, tokens = counts.get(key, Usage()), call.usage
    counts[key] = Usage(
        before.requests + 1,
        before.prompt_tokens + (tokens.prompt_tokens if tokens else 0),
        before.completion_tokens + (tokens.completion_tokens if tokens else 0),
    )


def _measure(core: ServerContext, endpoint: Endpoint, call: Call) -> None:
    if core.meters is None:
        return
    name = core.meters.endpoint(endpoint.name)
    core.meters.endpoint_requests.labels(name, f"{(call.status or 0) // 100}xx").inc()
    if call.begun_at is not None:
        core.meters.endpoint_first_s.labels(name).observe(call.begun_at - call.asked_at)
    if call.usage is not None:
        core.meters.endpoint_tokens.labels(name, "prompt").inc(call.usage.prompt_tokens)
        core.meters.endpoint_tokens.labels(name, "completion").inc(call.usage.completion_tokens)


async def flush(core: ServerContext) -> None:
    """Store the counts."""
    counts = core.state(Counts)
    if not counts.usage:
        return
    taken, counts.usage = counts.usage, {}
    try:
        await core.write(lambda connection: endpoints.add_usage(connection, taken))
    except BaseException:
        for key, usage in taken.items():
            more = counts.usage.get(key, Usage())
            counts.usage[key] = Usage(*(a + b for a, b in zip(usage, more, strict=True)))
        raise
