"""The worker behind a router: in a network namespace that nobody can reach, and from which only a proxy leads out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trustme

from tests.chaos import planted
from tests.chaos.lines import line
from tests.integration.nat.namespaces import ROUTER_DOWN, SERVER, Net, available, net

if TYPE_CHECKING:
    from tests.chaos.world import World

__all__ = ["available", "joined"]
NAME = "far"


@contextmanager
def joined(world: World) -> Iterator[Net]:
    """Make the namespaces, and a worker there that speaks TLS to the server through a proxy.

    The server itself stays where it is: a socket in the file system leads out of its namespace.
    """
    socket, paper, authority = world.temporary / "s.sock", world.folder / "server.pem", world.folder / "ca.pem"
    issuer, password = trustme.CA(), world.secrets[planted.PROXY]
    issuer.cert_pem.write_to_path(str(authority))
    issuer.issue_cert(SERVER).private_key_and_cert_chain_pem.write_to_path(str(paper))
    out = {"listen": str(socket), "target": f"127.0.0.1:{world.port}"}
    with line([out]), net() as made:
        made.middle("server", {"listen": f"{SERVER}:8443", "target": str(socket), "certificate": str(paper)})
        made.middle("router", {"listen": f"{ROUTER_DOWN}:3128", "kind": "proxy", "credentials": f"me:{password}"})
        _start(world, made, authority)
        yield made


def _start(world: World, made: Net, authority: Path) -> None:
    given = {
        "HTTPS_PROXY": f"http://me:{world.secrets[planted.PROXY]}@{ROUTER_DOWN}:3128",
        "ORCHESTRATOR_BASE_URL": f"https://{SERVER}:8443",
        "RESULTS_DIR": str(world.folder / NAME / "results"),
        "TUNEFLEET_CA_FILE": str(authority),
        "TUNEFLEET_WORKER_KEY": world.key("worker"),
        "WORKER_ID": NAME,
    }
    argv = ["ip", "netns", "exec", made.names["worker"], sys.executable, "-m", "tunefleet.worker"]
    world.add(NAME, argv, world.environment(NAME, given))
