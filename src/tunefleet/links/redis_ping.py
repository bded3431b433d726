"""Asks the Redis of the settings whether it is there, for `tunefleet doctor`."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from redis.exceptions import RedisError

from tunefleet.links.redis_faults import explained, shown
from tunefleet.links.redis_tls import address_of
from tunefleet.links.redis_worker import connect
from tunefleet.settings import MeetingSettings

_ANSWER_S: Final = 5.0


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
