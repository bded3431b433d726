"""Which user sits at the other end of a loopback connection.

The kernel lists every TCP socket with its owner in `/proc/net/tcp`; the peer's socket is the line whose local address
is our remote one. Where there is no such list the answer is "unknown", and the caller asks for a token.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

_ESTABLISHED = "01"


def peer_uid(peer: tuple[str, int], ours: tuple[str, int]) -> int | None:
    """Return the user id of the process that connected from `peer` to `ours` over IPv4 loopback, or None.

    Args:
        peer: Address and port of the other end.
        ours: Address and port of this end.
    """
    wanted = (_hex(peer), _hex(ours))
    try:
        table = Path("/proc/net/tcp").read_text(encoding="ascii")
    except OSError:
        return None
    for line in table.splitlines()[1:]:
        fields = line.split()
        # A connection that its owner has closed is listed with uid 0, so only an open one counts.
        if (fields[1], fields[2]) == wanted and fields[3] == _ESTABLISHED:
            return int(fields[7])
    return None


def _hex(address: tuple[str, int]) -> str:
    host, port = address
    (packed,) = struct.unpack("=I", socket.inet_aton(host))
    return f"{packed:08X}:{port:04X}"
