"""The port at which the ranks of a gang meet."""

from __future__ import annotations

import socket

import pytest

from tunefleet.errors import MachineError
from tunefleet.worker.machine.rendezvous import RendezvousAddress


def test_the_first_free_port_of_the_range_is_taken_and_a_full_range_is_named() -> None:
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(MachineError, match=rf"No port of {port}-{port} is free at 127\.0\.0\.1"):
            RendezvousAddress("127.0.0.1", (port, port)).choose_endpoint()
        host, _, any_free = RendezvousAddress("127.0.0.1", (0, 0)).choose_endpoint().rpartition(":")
        assert host == "127.0.0.1"
        assert int(any_free) != port
