"""`python -m tunefleet.api.health`: whether the server of these settings responds, for container health checks."""

from __future__ import annotations

import http
import http.client
import ssl
import sys
from typing import Final

from tunefleet.certificate import load_certificate
from tunefleet.errors import TunefleetError, UnreachableError
from tunefleet.settings import ServerSettings, load

_TIMEOUT_S: Final = 5.0


def check(settings: ServerSettings) -> None:
    """Request the health of this machine's server; over HTTPS it trusts the server's own certificate, for any name.

    Raises:
        UnreachableError: If it does not respond, or not with 200.
    """
    # A wildcard address can be bound but not portably connected to.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    certificate = load_certificate(settings.tls_cert_file, settings.tls_key_file)
    connection = (
        http.client.HTTPConnection(host, settings.port, timeout=_TIMEOUT_S)
        if certificate is None
        else http.client.HTTPSConnection(host, settings.port, timeout=_TIMEOUT_S, context=certificate.trust)
    )
    try:
        connection.request("GET", "/api/v1/healthz")
        status = connection.getresponse().status
    except (OSError, ssl.SSLError, http.client.HTTPException) as error:
        raise UnreachableError(f"No server responds at {host}:{settings.port}: {error}.") from error
    finally:
        connection.close()
    if status != http.HTTPStatus.OK:
        raise UnreachableError(f"The server at {host}:{settings.port} responded with status {status}.")


def main() -> int:
    """Check the server that the environment configures.

    Returns:
        0 if it responds, else 1 with a one-line reason on standard error.
    """
    try:
        check(load(ServerSettings))
    except TunefleetError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
