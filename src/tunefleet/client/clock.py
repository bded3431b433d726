"""How far this machine's clock is from a server's, by the date that each answer carries."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from time import time
from typing import Final

import httpx

from tunefleet.client.trust import context

_ANSWER_S: Final = 5.0


def ahead_s(url: str) -> float | None:
    """Return the seconds by which this machine is ahead of a server; the date of an answer is good to a second.

    Args:
        url: Of the server.

    Returns:
        Below zero if it is behind; null if the server does not answer or says no date.
    """
    began = time()
    try:
        answer = httpx.get(f"{url.rstrip('/')}/healthz", verify=context(), timeout=_ANSWER_S)
        told = parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (httpx.HTTPError, KeyError, ValueError):
        return None
    # The truth lies between the moments of asking and of hearing; the date leaves out what is below a second.
    return min((began - told, time() - told - 1.0), key=abs)
