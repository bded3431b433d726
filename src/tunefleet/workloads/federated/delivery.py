"""Delivery of one update to the server, across retries.

An update counts once, and is not given up as long as it may have arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tunefleet.client.federation.client import FederatedClient
from tunefleet.client.federation.transfer import AT_ONCE_BYTES
from tunefleet.errors import ArtifactError, TunefleetError, UnreachableError
from tunefleet.schemas.federated import UpdateCreate, UpdateTaken
from tunefleet.workloads.federated.contact import is_retryable

# Number of server errors after which a delivery is given up; a server that does not respond is not counted.
_FAULTS: Final = 8


class NeverArrived(Exception):
    """An update of an earlier process cannot be delivered: its file is gone, or the server fails on it."""


class Delivery:
    """An update that is being sent: a small one in one request; after an interruption, the file first.

    Args:
        file: Its weights; None if they were lost with the process that was sending them.
        heard: Called once, before the server may learn of the update.
    """

    def __init__(
        self, client: FederatedClient, update: UpdateCreate, file: Path | None, heard: Callable[[], None]
    ) -> None:
        self._client = client
        self._update = update
        self._file = file
        self._heard = heard
        self._at_once = file is not None and file.stat().st_size <= AT_ONCE_BYTES
        self._faults = 0
        # Once true, the update must not be dropped: the server may have counted it.
        self._may_be_taken = file is None

    @property
    def may_be_left(self) -> bool:
        """Whether a newer update may replace it: the server cannot have accepted it, or fails on it every time."""
        return not self._may_be_taken or self._faults >= _FAULTS

    def attempt(self) -> UpdateTaken:
        """Send what the server does not have yet.

        Raises:
            TunefleetError: If the server refuses it or does not respond; it may be retried.
            NeverArrived: If neither side has its file, or the server fails on it every time.
        """
        try:
            return self._attempt()
        except UnreachableError:
            raise
        except TunefleetError as error:
            self._faults += is_retryable(error)
            if self._faults >= _FAULTS and self._file is None:
                raise NeverArrived from error
            raise

    def _attempt(self) -> UpdateTaken:
        if self._file is not None and self._at_once:
            self._at_once = False
            return self._client.give(self._file, self._update, heard=self._mark_announced)
        if self._may_be_taken:
            try:
                return self._client.announce(self._update)
            except ArtifactError as error:
                if self._file is None:
                    raise NeverArrived from error
            return self._client.give_rest(self._file, self._update)
        assert self._file is not None, "an update that cannot have been accepted is from this process"
        self._client.send(self._file)
        self._mark_announced()
        return self._client.announce(self._update)

    def _mark_announced(self) -> None:
        if not self._may_be_taken:
            self._may_be_taken = True
            self._heard()
