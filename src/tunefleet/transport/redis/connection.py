"""The connection to a Redis: its health and its counters."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tunefleet.settings import RedisSettings
from tunefleet.transport.redis.address import address_of
from tunefleet.transport.redis.errors import explained, shown
from tunefleet.transport.redis.keys import check_url
from tunefleet.transport.redis.worker import connect

_ANSWER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class RedisUse:
    """Counters of a Redis since its start."""

    commands: int
    input_bytes: int
    output_bytes: int
    memory_bytes: int
    clients: int


def use_of(url: str) -> RedisUse:
    """Return the counters of a Redis.

    Raises:
        UnreachableError: If it does not respond.
        MachineError: If the URL is invalid, or the login is rejected.
    """
    check_url(url)
    client: Any = Redis.from_url(
        url, decode_responses=True, encoding_errors="replace", protocol=2,
        socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S,
        retry=Retry(NoBackoff(), 0),
    )  # fmt: skip
    try:
        info = client.info()
    except (RedisError, OSError) as error:
        raise explained(error, url, "INFO", first=True) from error
    finally:
        client.close()
    return RedisUse(
        int(info["total_commands_processed"]),
        int(info["total_net_input_bytes"]),
        int(info["total_net_output_bytes"]),
        int(info["used_memory"]),
        int(info["connected_clients"]),
    )


def ping(settings: RedisSettings) -> str:
    """Check the configured Redis, and return a status message.

    Raises:
        MachineError: If the URL is invalid, a file is unreadable, or the login is rejected.
        UnreachableError: If it does not respond.
    """
    url = address_of(settings)
    assert url is not None, "callers check that a Redis is configured"
    try:
        with closing(connect(url, read_s=_ANSWER_S)) as client:
            client.ping()
    except (RedisError, OSError) as error:
        raise explained(error, url, "PING", first=True) from error
    return f"{shown(url)} responds"
