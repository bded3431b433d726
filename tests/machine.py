"""What a process needs of this machine's environment, where a test gives it no other variable."""

from __future__ import annotations

import os

_NAMES = {
    "PATH", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
}  # fmt: skip
_PREFIXES = ("NPM_CONFIG_", "PIP_", "UV_")


def machine_environment(**more: str) -> dict[str, str]:
    """Return `PATH` and the variables of proxies, certificates and package indexes, in either case, and `more`.

    A test with a reduced environment shows that a program needs none of a developer's settings. How the network is
    reached is no such setting: on a machine behind a proxy nothing is fetched without it.
    """
    kept = {name: value for name, value in os.environ.items() if _is_of_the_machine(name.upper())}
    return {**kept, **more}


def _is_of_the_machine(name: str) -> bool:
    return name in _NAMES or name.startswith(_PREFIXES)
