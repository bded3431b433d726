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

from tunefleet.client.federated import FederatedClient
from tunefleet.errors import GoneError, TunefleetError
from tunefleet.programs.federated.adapter import LiveAdapter
from tunefleet.programs.federated.contact import Contact, Ended, Patience
from tunefleet.programs.federated.fitting import read_fitting
from tunefleet.wire.federated import VersionView

logger = logging.getLogger("tunefleet.federation")

_WAIT_S: Final = 20.0
"""So long a server holds its answer until there is a version."""
_FINAL: Final = frozenset({"completed", "cancelled"})
_SHORTEST_S: Final = 1.0
"""A server that does not hold it is not asked more often than this."""
_LOOK_S: Final = 0.2
"""Time between two looks whether the training has taken what is here."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A version that is here.

    Args:
        version: Its number.
        values: Its tensors, on the CPU, by published name.
    """

    version: int
    values: Mapping[str, torch.Tensor] = field(repr=False)


class Inbox:
    """Where versions are fetched to; the newest stays, for whoever wants to look at it.

    Args:
        client: To the federation.
        live: What they must fit.
        folder: Theirs.
        has_room: Whether another one is to be fetched; of those that come out meanwhile only the newest will be.
    """

    def __init__(self, client: FederatedClient, live: LiveAdapter, folder: Path, has_room: Callable[[], bool]) -> None:
        self._client = client
        self._live = live
        self._folder = folder
        self.has_room = has_room

    def fetch(self, version: VersionView) -> Arrived:
        """Fetch a version.

        Raises:
            AdapterRefused: If it does not fit the adapter that trains.
            ArtifactError: If it arrives damaged.
            UnreachableError: If the server does not answer.
        """
        place = self._client.download(version, self._folder)
        values = read_fitting(self._live, place)
        for other in self._folder.glob("version-*"):
            if other != place:
                shutil.rmtree(other, ignore_errors=True)
        return Arrived(version.version, values)


class Follower:
    """A thread that fetches each new version.

    Args:
        client: To the federation.
        inbox: Where they go.
        contact: Shared with the thread that sends.
        after: The version that is here already.
        first: Asked before anything else, once the server answers.
        arrived: Called with each version.
        refused: Called with what the server refused, or what does not fit; nothing is fetched any more then.
        ended: Called when the thread ends.
    """

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
        newest = self._patience.ask(lambda: self._client.newest(self._after, wait_s=_WAIT_S))
        if newest is None:
            self._patience.ask(self._refuse_ended)
            self._pause(max(_SHORTEST_S - (time.monotonic() - began), 0.0))
            return
        found = self._patience.ask(lambda: self._inbox.fetch(newest))
        if not self._ended.is_set():
            self._after = newest.version
            self._arrived(found)

    def _refuse_ended(self) -> None:
        """Notice that there will be no further version: who waits for one would wait in vain."""
        found = self._client.federation()
        if found.status in _FINAL:
            raise GoneError(f"The federation {found.id} is {found.status}; it takes no more updates.")

    def _pause(self, seconds: float) -> None:
        if self._ended.wait(seconds):
            raise Ended
