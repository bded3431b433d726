"""The server that is saved for this user while a fleet runs, and what was saved before it."""

from __future__ import annotations

from pathlib import Path

from tunefleet.client.connection import ClientFile, Connection, read_client_file, write_client_file
from tunefleet.errors import InputError


class SavedServer:
    """Saves a server in `client.json`, and gives the file back to the server that was there before.

    Args:
        file: This user's `client.json`.
        connection: The server, and the key for it.
    """

    def __init__(self, file: Path, connection: Connection) -> None:
        self._file = file
        self._ours = connection
        self._before = _read(file)
        write_client_file(file, connection)

    def put_back(self) -> None:
        """Save the server of before again, unless another was saved meanwhile.

        Without one of before the file stays: the next start on the same data folder has the same address and key.
        """
        now, before = _read(self._file), self._before
        if before is not None and now == ClientFile(url=self._ours.url, key=self._ours.key):
            write_client_file(self._file, Connection(before.url, before.key))


def _read(file: Path) -> ClientFile | None:
    try:
        return read_client_file(file)
    except InputError:
        return None  # what cannot be read is of no use to anybody
