"""How the ranks make one checkpoint durable together: digests to rank 0, its result back.

Runs in the thread that finishes checkpoints, over a store connection of its own. No rank acts on a checkpoint (ends for
a pause, reports it) before all ranks know whether it is complete.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..distributed.tcp_store import StoreConnection
from .manifest import Hashed

logger = logging.getLogger(__name__)

_SEEN_S = 10.0


class RankFailedError(OSError):
    """Another rank could not finish its part of a checkpoint."""


class CheckpointCommit:
    """One training run's checkpoints, among its ranks.

    Args:
        connection: The connection to the other ranks.
    """

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection
        self._number = 0

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._connection.rank

    def begin(self) -> None:
        """Begin with the next checkpoint; all ranks process the same ones in the same order."""
        self._number += 1

    def post(
        self, hashed: Mapping[str, Hashed] | None, fault: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Publish what this rank has hashed, or why it could not.

        Args:
            fault: Why there are no digests.
            files: Content of the files, if rank 0 has another disk.
        """
        body: dict[str, Any] = {"hashed": hashed, "fault": fault, "files": {}}
        if files is not None:
            body["files"] = {name: base64.b64encode(data).decode() for name, data in files.items()}
        self._connection.set(f"{self._number}/{self.rank}", json.dumps(body).encode())

    def collect(self, folder: Path) -> dict[str, Hashed]:
        """Return what the other ranks have hashed; files from another disk are written into the folder.

        Raises:
            RankFailedError: If a rank could not hash its files.
            PeerLostError: If a rank is lost.
        """
        found: dict[str, Hashed] = {}
        for rank in range(1, self._connection.size):
            what = f"the digests of checkpoint {self._number}"
            body = json.loads(self._connection.wait_for(f"{self._number}/{rank}", (rank,), what))
            if body["hashed"] is None:
                raise RankFailedError(f"rank {rank}: {body['fault']}")
            for apart, text in body["files"].items():
                (folder / apart).write_bytes(base64.b64decode(text))
            found |= {name: (digest, size, changed) for name, (digest, size, changed) in body["hashed"].items()}
        return found

    def announce(self, *, whole: bool) -> None:
        """Publish whether the checkpoint is complete; return when all ranks have read it: this process may end then."""
        key = f"{self._number}/result"
        self._connection.set(key, b"1" if whole else b"0")
        # A rank that died meanwhile never reads the result, so the wait is bounded.
        deadline = time.monotonic() + _SEEN_S
        while self._connection.count(f"{self._number}/seen") < self._connection.size - 1:
            if time.monotonic() > deadline:
                logger.warning("Not every rank has read the result of checkpoint %d", self._number)
                return
            time.sleep(0.005)
        # The store lives as long as the run: keys of finished checkpoints would pile up.
        posted = (f"{self._number}/{rank}" for rank in range(1, self._connection.size))
        for name in (key, f"{self._number}/seen", *posted):
            self._connection.drop(name)

    def await_result(self) -> bool:
        """Wait for rank 0 to publish whether the checkpoint is complete.

        Raises:
            PeerLostError: If rank 0 is lost.
        """
        what = f"the result of checkpoint {self._number}"
        result = self._connection.wait_for(f"{self._number}/result", (0,), what)
        self._connection.count(f"{self._number}/seen", 1)
        return result == b"1"
