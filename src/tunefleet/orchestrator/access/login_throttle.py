"""Rate limit for failed logins by address: a burst, then one attempt per interval (a leaky bucket).

In memory only: a restart resets it, which gives away too few attempts to guess a key.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from typing import Final

from tunefleet.errors import TooManyError

# Failures that an address may have in a burst.
BURST: Final = 10
# One failure is forgiven per interval.
FORGIVE_EVERY_S: Final = 10.0
# Number of addresses that are remembered, to bound memory; the least recent ones are dropped.
_ADDRESSES: Final = 10_000
# Prefix length of an IPv6 network that one customer typically has: its addresses count as one.
_NETWORK: Final = 64


class LoginThrottle:
    """Failed logins by address, each with the time of its last update."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def begin(self, address: str, now: float) -> None:
        """Count an attempt as failed before it is checked, so that concurrent attempts count.

        Raises:
            TooManyError: If the address has had too many failures; the attempt does not count.
        """
        name = _bucket_name(address)
        left = self._left(name, now)
        if left + 1 > BURST:
            wait_s = math.ceil(round((left + 1 - BURST) * FORGIVE_EVERY_S, 3))
            raise TooManyError(
                "Too many failed logins from this address.",
                hint=f"Try again in {wait_s} seconds.",
                retry_after_s=wait_s,
            )
        self._keep(name, left + 1, now)

    def succeeded(self, address: str, now: float) -> None:
        """Take back the failure that `begin` counted."""
        name = _bucket_name(address)
        self._keep(name, self._left(name, now) - 1, now)

    def _left(self, name: str, now: float) -> float:
        failures, at = self._failures.get(name, (0.0, now))
        return max(0.0, failures - (now - at) / FORGIVE_EVERY_S)

    def _keep(self, name: str, failures: float, now: float) -> None:
        self._failures.pop(name, None)
        if failures > 0:
            self._failures[name] = (failures, now)
            while len(self._failures) > _ADDRESSES:
                self._failures.popitem(last=False)


def _bucket_name(address: str) -> str:
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(known, ipaddress.IPv6Address):
        mapped = known.ipv4_mapped
        return str(mapped or ipaddress.ip_network((known, _NETWORK), strict=False))
    return str(known)
