"""How often somebody may try to log in: some at once, then one now and then, until a try succeeds.

Kept in memory: a restart forgives everybody, and a key cannot be guessed in the few tries that this gives away.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from typing import Final

from tunefleet.errors import TooManyError

# Failures that an address may have in a row.
AT_ONCE: Final = 10
# After so many seconds one failure is forgiven.
EVERY_S: Final = 10.0
# So many addresses are remembered; of more, those that tried longest ago are forgotten.
_ADDRESSES: Final = 10_000
# One customer has a whole IPv6 network of this length: its addresses count as one.
_NETWORK: Final = 64


class Tries:
    """Failed log-ins by address, each with when it was last looked at."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def begin(self, address: str, now: float) -> None:
        """Count a try as failed, before it is looked at: what is tried at once counts at once.

        Raises:
            TooManyError: If that address has failed too often; the try does not count.
        """
        name = _whose(address)
        left = self._left(name, now)
        if left + 1 > AT_ONCE:
            wait_s = math.ceil(round((left + 1 - AT_ONCE) * EVERY_S, 3))
            raise TooManyError(
                "There were too many log-ins with a wrong key or code from this address.",
                hint=f"Try again in {wait_s} seconds.",
                retry_after_s=wait_s,
            )
        self._keep(name, left + 1, now)

    def succeeded(self, address: str, now: float) -> None:
        """Take back the failure that `begin` counted."""
        name = _whose(address)
        self._keep(name, self._left(name, now) - 1, now)

    def _left(self, name: str, now: float) -> float:
        failures, at = self._failures.get(name, (0.0, now))
        return max(0.0, failures - (now - at) / EVERY_S)

    def _keep(self, name: str, failures: float, now: float) -> None:
        self._failures.pop(name, None)
        if failures > 0:
            self._failures[name] = (failures, now)
            while len(self._failures) > _ADDRESSES:
                self._failures.popitem(last=False)


def _whose(address: str) -> str:
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(known, ipaddress.IPv6Address):
        mapped = known.ipv4_mapped
        return str(mapped or ipaddress.ip_network((known, _NETWORK), strict=False))
    return str(known)
