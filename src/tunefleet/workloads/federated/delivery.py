"""One update on its way to the server, however often it is tried.

It counts once, and nobody takes it for lost as long as it may have arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tunefleet.client.federation.client import FederatedClient
from tunefleet.client.federation.transfer import AT_ONCE_BYTES
from tunefleet.errors import ArtifactError, TunefleetError, UnreachableError
from tunefleet.schemas.federated import UpdateCreate, UpdateTaken
from tunefleet.workloads.federated.contact import passes

# So often a server may answer that it cannot take an update now; silence does not count.
_FAULTS: Final = 8


class NeverArrived(Exception):
    """The server does not take an update that an earlier process was sending: its file is gone, or it fails at it."""


class Delivery:
    """An update that is being sent: with its file in one request if that is small; where that breaks, the file first.

    Args:
        file: Its weights; None if they are gone with the process that was sending them.
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
        self._may_be_taken = file is None

    @property
    def may_be_left(self) -> bool:
        """Whether a newer update may go instead: the server cannot have taken this one, or fails at it every time."""
        return not self._may_be_taken or self._faults >= _FAULTS

    def attempt(self) -> UpdateTaken:
        """Send what the server does not have.

        Raises:
            TunefleetError: If the server refuses it, or does not answer: then it may be tried again.
            NeverArrived: If its file is neither there nor here, or the server fails at it every time.
        """
        try:
            return self._attempt()
        except UnreachableError:
            raise
        except TunefleetError as error:
            self._faults += passes(error)
            if self._faults >= _FAULTS and self._file is None:
                raise NeverArrived from error
            raise

    def _attempt(self) -> UpdateTaken:
        if self._file is not None and self._at_once:
            self._at_once = False
            return self._client.give(self._file, self._update, heard=self._say)
        if self._may_be_taken:
            try:
                return self._client.announce(self._update)
            except ArtifactError as error:
                if self._file is None:
                    raise NeverArrived from error
            return self._client.give_rest(self._file, self._update)
        assert self._file is not None, "what cannot have been taken was made by this process"
        self._client.send(self._file)
        self._say()
        return self._client.announce(self._update)

    def _say(self) -> None:
        if not self._may_be_taken:
            self._may_be_taken = True
            self._heard()
