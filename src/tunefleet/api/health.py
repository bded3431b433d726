"""`python -m tunefleet.api.health`: whether the server of these settings answers, for whoever watches it."""

from __future__ import annotations

import http
import http.client
import ssl
import sys
from typing import Final

from tunefleet.certificate import opened
from tunefleet.errors import TunefleetError, UnreachableError
from tunefleet.settings import ServerSettings, load

_TIMEOUT_S: Final = 5.0


def check(settings: ServerSettings) -> None:
    """Ask the server of this machine how it is; over HTTPS with its own certificate, whatever name that is for.

    Raises:
        UnreachableError: If it does not answer, or not well.
    """
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    certificate = opened(settings.tls_cert_file, settings.tls_key_file)
    asked = (
        http.client.HTTPConnection(host, settings.port, timeout=_TIMEOUT_S)
        if certificate is None
        else http.client.HTTPSConnection(host, settings.port, timeout=_TIMEOUT_S, context=certificate.trust)
    )
    try:
        asked.request("GET", "/api/v1/healthz")
        status = asked.getresponse().status
    except (OSError, ssl.SSLError, http.client.HTTPException) as error:
        raise UnreachableError(f"No server answers at {host}:{settings.port}: {error}.") from error
    finally:
        asked.close()
    if status != http.HTTPStatus.OK:
        raise UnreachableError(f"The server at {host}:{settings.port} answers with {status}.")


def main() -> int:
    """Ask the server that the environment names.

    Returns:
        0 if it answers, 1 if not; the reason is on standard error in one sentence.
    """
    try:
        check(load(ServerSettings))
    except TunefleetError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
