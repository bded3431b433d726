"""Messages between the ranks outside of collectives: a few keys in the process group's store.

A collective has to be joined by all ranks together; a key is written by one rank and read by the others when they get
to it. The store is a clone, so that no message waits behind one of torch's own.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from ..process_identity import machine, process_started_at
from . import world

logger = logging.getLogger(__name__)

MAX_HORIZON = 8
# Longest delay of a command with fast steps: the longer, the less often the ranks communicate.
_HORIZON_S = 0.25
LONG_STEP_S = _HORIZON_S / 2
"""The horizon is one step if steps take longer."""
_FIRST_LOOK_S = 50e-6
_LONGEST_LOOK_S = 2e-3
_PEERS_EVERY_S = 0.5
_MARGIN_S = 60.0
_NOBODYS = "?"
_opened: Counter[str] = Counter()


class PeerLostError(TimeoutError):
    """Another rank is gone, or did not respond within the timeout of the process group."""


class StoreConnection:
    """Keys of one purpose, shared by all ranks; not thread-safe.

    Args:
        store: A clone of the process group's store for this connection alone.
        rank: The rank of this process.
        size: The number of ranks.
        timeout_s: How long to wait for a key of another rank.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._timeout_s = timeout_s
        me = {"host": machine(), "pid": os.getpid(), "started_at": process_started_at(os.getpid())}
        self.set(f"process/{rank}", json.dumps(me).encode())

    def set(self, key: str, value: bytes) -> None:
        """Write a key; return before the others can read it."""
        self._store.set(key, value)

    def read(self, key: str) -> bytes:
        """Return a key that is known to exist."""
        return bytes(self._store.get(key))

    def look(self, key: str) -> bytes:
        """Return a key that is known to exist, in one message; `get` sends two."""
        # The swap happens only if the value is already this one, which is never written.
        return bytes(self._store.compare_set(key, _NOBODYS, _NOBODYS))

    def has(self, key: str) -> bool:
        """Return whether a key exists."""
        return bool(self._store.check([key]))

    def count(self, key: str, by: int = 0) -> int:
        """Add to a counter and return it."""
        return int(self._store.add(key, by))

    def drop(self, key: str) -> None:
        """Remove a key."""
        self._store.delete_key(key)

    def wait_for(self, key: str, ranks: Iterable[int], what: str) -> bytes:
        """Return a key as soon as it exists.

        Args:
            ranks: The ranks that may have to write it; the wait ends if one of them is lost.
            what: What is missing, for the error: "the decision for step 7".

        Raises:
            PeerLostError: If it is not written in time.
        """
        wait = PeerWait(self, tuple(ranks), what)
        while not self.has(key):
            wait.once()
        return self.read(key)

    def lost(self, rank: int) -> bool:
        """Return whether another rank's process on this machine is gone; unknown for other machines."""
        if not self.has(f"process/{rank}"):
            return False
        peer = json.loads(self.read(f"process/{rank}"))
        is_local = peer["host"] == machine() and peer["started_at"] is not None
        return is_local and process_started_at(peer["pid"]) != peer["started_at"]

    def any_lost(self) -> bool:
        """Return whether another rank of this machine is gone."""
        return any(self.lost(rank) for rank in range(self.size) if rank != self.rank)

    def local_peers(self) -> list[int]:
        """Return the pids of the other ranks on this machine."""
        others = [rank for rank in range(self.size) if rank != self.rank and self.has(f"process/{rank}")]
        living = [rank for rank in others if not self.lost(rank)]
        peers = [json.loads(self.read(f"process/{rank}")) for rank in living]
        return [int(peer["pid"]) for peer in peers if peer["host"] == machine()]


class PeerWait:
    """Waits a little longer each time, and gives up when a rank is lost or the time is up.

    Args:
        connection: The connection, which knows the lost ranks.
        ranks: The ranks that are waited for.
        what: The missing message, for the error.
    """

    def __init__(self, connection: StoreConnection, ranks: tuple[int, ...], what: str) -> None:
        self._connection, self._ranks, self._what = connection, ranks, what
        self._began = self._looked = time.monotonic()
        self._pause_s = _FIRST_LOOK_S

    def once(self) -> None:
        """Wait once.

        Raises:
            PeerLostError: If a rank is lost, or the time is up.
        """
        time.sleep(self._pause_s)
        # Starts short, since the key usually exists already, and backs off to spare the store.
        self._pause_s = min(self._pause_s * 2, _LONGEST_LOOK_S)
        now = time.monotonic()
        # Not at each wait: a check reads the store and /proc.
        if now - self._looked >= _PEERS_EVERY_S:
            self._looked = now
            gone = [rank for rank in self._ranks if self._connection.lost(rank)]
            if gone:
                raise PeerLostError(f"Rank {gone[0]} is lost; rank {self._connection.rank} waited for {self._what}.")
        if now - self._began > self._connection._timeout_s:
            names = ", ".join(map(str, self._ranks))
            raise PeerLostError(
                f"Rank {names} did not send {self._what} within {self._connection._timeout_s:.0f} s; "
                f"rank {self._connection.rank} gave up."
            )


def horizon_of(step_s: float) -> int:
    """Return how many steps of this length the ranks decide in advance."""
    return max(1, min(MAX_HORIZON, int(_HORIZON_S / max(step_s, 1e-6))))


def open_connection(purpose: str) -> StoreConnection | None:
    """Open a connection to the other ranks, or return None if their store cannot be cloned.

    Every rank opens the same connections in the same order; those of one purpose are numbered.

    Args:
        purpose: Prefix of its keys.
    """
    group = world.distributed()
    if group is None or group.get_world_size() < 2:
        return None
    number = _opened[purpose]
    _opened[purpose] += 1
    try:
        # Private API, but the only access to the store of a group that the script created.
        store = group.distributed_c10d._get_default_store()
        clone = group.PrefixStore(f"tunefleet/{purpose}/{number}", store.clone())
        limit = store.timeout if isinstance(store.timeout, timedelta) else timedelta(minutes=30)
    except (AttributeError, AssertionError, RuntimeError, ValueError, NotImplementedError) as error:
        logger.info("The process group's store cannot be shared (%r); the ranks use collectives", error)
        return None
    # Longer than a collective waits: the collective should fail first, since it knows which rank is late.
    return StoreConnection(clone, int(group.get_rank()), int(group.get_world_size()), limit.total_seconds() + _MARGIN_S)
