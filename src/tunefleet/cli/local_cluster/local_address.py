"""By which name this machine reaches a server of its own whose certificate is for certain names only."""

from __future__ import annotations

import ipaddress
import socket

import psutil

from tunefleet.certificate import Facts
from tunefleet.errors import MachineError


def name_of(facts: Facts, host: str) -> str:
    """Return a name of the certificate that leads to this machine."""
    if facts.fault is not None:
        raise MachineError(
            f"The certificate in TUNEFLEET_TLS_CERT_FILE is refused by every client: {facts.fault}.",
            hint="Renew it; the server reads it again by itself.",
        )
    if facts.covers(host):
        return host
    if _is_loopback(host) and facts.covers("localhost"):
        return "localhost"
    wanted = _own_addresses() if _is_loopback(host) else {host}
    for name in facts.names:
        if "*" not in name and _addresses(name) & wanted:
            return name
    raise MachineError(
        f"The certificate in TUNEFLEET_TLS_CERT_FILE is for {', '.join(facts.names) or 'no name'}, and none of that "
        f"leads to this machine: its own workers could not check it at {host}.",
        hint="Get one that is for 127.0.0.1 too, or let TUNEFLEET_HOST be the address that its name leads to.",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _own_addresses() -> set[str]:
    return {each.address.partition("%")[0] for found in psutil.net_if_addrs().values() for each in found}


def _addresses(name: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except socket.gaierror:
        return set()
