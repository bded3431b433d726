"""Fetches new versions of the global adapter beside the training, and hands each over once it is whole and checked."""

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
from tunefleet.workloads.federated.compatibility import read_fitting
from tunefleet.workloads.federated.contact import Contact, Ended, Patience
from tunefleet.workloads.federated.live_adapter import LiveAdapter

logger = logging.getLogger("tunefleet.federation")

# So long a server holds its answer until there is a version.
_WAIT_S: Final = 20.0
_FINAL: Final = frozenset({"completed", "cancelled"})
_SHORTEST_S: Final = 1.0
"""A server that does not hold it is not asked more often than this."""
_FLOAT_BYTES: Final = 4
_LOOK_S: Final = 0.2
"""Time between two looks whether the training has taken what is here."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A version that is here."""

    version: int
    values: Mapping[str, torch.Tensor] = field(repr=False)


class Inbox:
    """Where versions are fetched to; the newest stays, for whoever wants to look at it."""

    def __init__(self, client: FederatedClient, live: LiveAdapter, folder: Path, has_room: Callable[[], bool]) -> None:
        self._client = client
        self._live = live
        self._folder = folder
        self.has_room = has_room

    def next(self, after: int, wait_s: float = 0.0) -> Arrived | None:
        """Fetch the newest version; a small one comes with the answer to the question for it.

        Raises:
            AdapterRefused: If it does not fit the adapter that trains.
            ArtifactError: If it arrives damaged.
            UnreachableError: If the server does not answer.
        """
        found = self._small(after, wait_s) if self._is_small else self._large(after, wait_s)
        if found is None:
            return None
        version, place = found
        values = read_fitting(self._live, place)
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
        """Ask first: then a download that breaks goes on where it was."""
        newest = self._client.newest(after, wait_s=wait_s)
        return None if newest is None else (newest.version, self._client.download(newest, self._folder))


class Follower:
    """A thread that fetches each new version."""

    def __init__(
        self,
        client: FederatedClient,
        inbox: Inbox,
        contact: Contact,
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
        self._over = ended
        self._patience = Patience(contact, self._pause)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tunefleet-federation-fetch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Fetch nothing any more; what is being waited for is left to end by itself."""
        self._ended.set()

    def _run(self) -> None:
        try:
            self._patience.ask(self._first)
            while not self._ended.is_set():
                self._look()
        except Ended:
            logger.debug("The training has ended; no version is fetched any more.")
        except Exception as error:
            if not isinstance(error, TunefleetError):
                logger.exception("New versions cannot be fetched any more.")
            self._refused(error)
        finally:
            self._over()

    def _look(self) -> None:
        while not self._inbox.has_room():
            self._pause(_LOOK_S)
        began = time.monotonic()
        found = self._patience.ask(lambda: self._inbox.next(self._after, _WAIT_S))
        if found is None:
            self._patience.ask(self._refuse_ended)
            self._pause(max(_SHORTEST_S - (time.monotonic() - began), 0.0))
        elif not self._ended.is_set():
            self._after = found.version
            self._arrived(found)

    def _refuse_ended(self) -> None:
        """Notice that there will be no further version: who waits for one would wait in vain."""
        found = self._client.federation()
        if found.status in _FINAL:
            raise GoneError(f"The federation {found.id} is {found.status}; it takes no more updates.")

    def _pause(self, seconds: float) -> None:
        if self._ended.wait(seconds):
            raise Ended
