"""What a Redis says of itself: whether it answers, and how much goes through it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tunefleet.settings import MeetingSettings
from tunefleet.transport.redis.connection import address_of
from tunefleet.transport.redis.errors import explained, shown
from tunefleet.transport.redis.keys import check_url
from tunefleet.transport.redis.worker import connect

_ANSWER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class RedisUse:
    """How much a Redis has done since it began."""

    commands: int
    input_bytes: int
    output_bytes: int
    memory_bytes: int
    clients: int


def use_of(url: str) -> RedisUse:
    """Ask a Redis for its counters.

    Raises:
        UnreachableError: If it does not answer.
        MachineError: If the URL is none, or the login is refused.
    """
    check_url(url)
    client: Any = Redis.from_url(
        url, decode_responses=True, encoding_errors="replace", protocol=2,
        socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S,
        retry=Retry(NoBackoff(), 0),
    )  # fmt: skip
    try:
        told = client.info()
    except (RedisError, OSError) as error:
        raise explained(error, url, "INFO", first=True) from error
    finally:
        client.close()
    return RedisUse(
        int(told["total_commands_processed"]),
        int(told["total_net_input_bytes"]),
        int(told["total_net_output_bytes"]),
        int(told["used_memory"]),
        int(told["connected_clients"]),
    )


def ping(settings: MeetingSettings) -> str:
    """Return where the Redis is that the settings name, once it has answered.

    Raises:
        MachineError: If the URL is none, a file cannot be read, or the login is refused.
        UnreachableError: If it does not answer.
    """
    url = address_of(settings)
    assert url is not None, "who asks knows that there is one"
    try:
        with closing(connect(url, read_s=_ANSWER_S)) as client:
            client.ping()
    except (RedisError, OSError) as error:
        raise explained(error, url, "PING", first=True) from error
    return f"{shown(url)} answers"
