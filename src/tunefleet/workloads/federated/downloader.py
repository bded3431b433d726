"""Downloads new versions of the global adapter in the background, and delivers each once it is complete and checked."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch

from tunefleet.client.federation.client import FederatedClient
from tunefleet.client.federation.transfer import AT_ONCE_BYTES
from tunefleet.errors import GoneError, TunefleetError
from tunefleet.workloads.federated.contact import Reachability, RetryPolicy, SessionEnded
from tunefleet.workloads.federated.live_adapter import LiveAdapter
from tunefleet.workloads.federated.weight_reload import read_converted

logger = logging.getLogger("tunefleet.federation")

# Long polling: how long the server holds a request until there is a new version.
_WAIT_S: Final = 20.0
_FINAL: Final = frozenset({"completed", "cancelled"})
# Minimum interval between requests to a server that does not hold them.
_MIN_INTERVAL_S: Final = 1.0
_FLOAT_BYTES: Final = 4
# Interval of checks whether the trainer has taken a downloaded version.
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Arrived:
    """A downloaded version."""

    version: int
    values: Mapping[str, torch.Tensor] = field(repr=False)


class Inbox:
    """Downloads versions into a folder; the newest one stays there for inspection."""

    def __init__(self, client: FederatedClient, live: LiveAdapter, folder: Path, has_room: Callable[[], bool]) -> None:
        self._client = client
        self._live = live
        self._folder = folder
        self.has_room = has_room

    def next(self, after: int, wait_s: float = 0.0) -> Arrived | None:
        """Download the newest version; a small one is part of the response.

        Raises:
            AdapterRefused: If it does not fit the adapter being trained.
            ArtifactError: If it is damaged in transit.
            UnreachableError: If the server does not respond.
        """
        found = self._small(after, wait_s) if self._is_small else self._large(after, wait_s)
        if found is None:
            return None
        version, place = found
        values = read_converted(self._live, place)
        for other in self._folder.glob("version-*"):
            if other != place:
                shutil.rmtree(other, ignore_errors=True)
        return Arrived(version, values)

    @property
    def _is_small(self) -> bool:
        values = sum(tensor.numel() for tensor in self._live.tensors.values())
        return values * _FLOAT_BYTES <= AT_ONCE_BYTES

    def _small(self, after: int, wait_s: float) -> tuple[int, Path] | None:
        fetched = self._client.fetch(self._folder, after=after, wait_s=wait_s)
        return None if fetched is None else (fetched.version, fetched.folder)

    def _large(self, after: int, wait_s: float) -> tuple[int, Path] | None:
        """Query the version first, so that an interrupted download can be resumed."""
        newest = self._client.newest(after, wait_s=wait_s)
        return None if newest is None else (newest.version, self._client.download(newest, self._folder))


class Downloader:
    """A thread that downloads each new version."""

    def __init__(
        self,
        client: FederatedClient,
        inbox: Inbox,
        reachability: Reachability,
        *,
        after: int,
        first: Callable[[], None],
        arrived: Callable[[Arrived], None],
        refused: Callable[[Exception], None],
        ended: Callable[[], None],
    ) -> None:
        self._client = client
        self._inbox = inbox
        self._after = after
        self._first = first
        self._arrived = arrived
        self._refused = refused
        self._on_end = ended
        self._retries = RetryPolicy(reachability, self._pause)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tunefleet-federation-fetch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop downloading; does not wait for a request in progress."""
        self._ended.set()

    def _run(self) -> None:
        try:
            self._retries.call(self._first)
            while not self._ended.is_set():
                self._look()
        except SessionEnded:
            logger.debug("Training has ended; no more versions are downloaded.")
        except Exception as error:
            if not isinstance(error, TunefleetError):
                logger.exception("New versions can no longer be downloaded.")
            self._refused(error)
        finally:
            self._on_end()

    def _look(self) -> None:
        # Each version holds a full adapter in memory, so no more are fetched than the trainer takes.
        while not self._inbox.has_room():
            self._pause(_POLL_S)
        began = time.monotonic()
        found = self._retries.call(lambda: self._inbox.next(self._after, _WAIT_S))
        if found is None:
            self._retries.call(self._refuse_ended)
            self._pause(max(_MIN_INTERVAL_S - (time.monotonic() - began), 0.0))
        elif not self._ended.is_set():
            self._after = found.version
            self._arrived(found)

    def _refuse_ended(self) -> None:
        """Raise `GoneError` if the federation has ended: there will be no further version."""
        found = self._client.federation()
        if found.status in _FINAL:
            raise GoneError(f"Federation {found.id} is {found.status}; it accepts no more updates.")

    def _pause(self, seconds: float) -> None:
        if self._ended.wait(seconds):
            raise SessionEnded
