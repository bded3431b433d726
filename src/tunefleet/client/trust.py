"""Whom this process trusts on the way to a server: the system's certificates, and those of `TUNEFLEET_CA_FILE`.

And in which words a connection fails: a certificate that does not hold, a proxy that refuses. Such a fault is not
passed by trying again at once.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from tunefleet.errors import MachineError, UnreachableError
from tunefleet.settings import ClientSettings, load

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_EXPIRED: Final = 10
_NOT_YET: Final = 9
_WRONG_HOST: Final = frozenset({62, 64})
_UNKNOWN: Final = frozenset({18, 19, 20, 21})
_chosen: list[Path | None] = []


def use(ca_file: Path | None) -> None:
    """Say once, in a process's `main`, which certificates it trusts beside the system's; else those of a command."""
    _chosen[:] = [ca_file]


def ca_file() -> Path | None:
    """Return the file of further certificates; null if there is none."""
    found = _chosen[0] if _chosen else load(ClientSettings).ca_file
    return None if found is None else found.expanduser().absolute()


def context() -> ssl.SSLContext:
    """Return what checks the certificate of a server.

    Raises:
        MachineError: If the file of certificates cannot be read.
    """
    file = ca_file()
    try:
        return _context(file, None if file is None else file.stat().st_mtime_ns)
    except OSError as error:  # of which an SSLError is one
        raise MachineError(
            f"TUNEFLEET_CA_FILE={file} cannot be read as certificates: {error}.",
            hint="It is a file with one or more certificates in PEM form.",
        ) from error


@lru_cache(maxsize=4)
def _context(file: Path | None, _: int | None) -> ssl.SSLContext:
    made = ssl.create_default_context()
    if file is not None:
        made.load_verify_locations(cafile=str(file))
    return made


def options(url: str) -> dict[str, Any]:
    """Return how a client reaches a server: what it trusts, and whether through the proxies of the environment.

    Raises:
        MachineError: If the file of certificates cannot be read.
    """
    parsed = httpx.URL(url)
    # Loading the system's certificates takes 15 ms; plain http needs none, and an empty context trusts nobody.
    plain = parsed.scheme != "https" and not getproxies().get(parsed.scheme, "").startswith("https:")
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else context()
    # A proxy from the environment is of no use on the way to this machine itself.
    return {"verify": verify, "trust_env": parsed.host not in LOOPBACK}


def lasting(error: BaseException) -> bool:
    """Whether an error of httpx is one that trying again at once does not pass."""
    return isinstance(error, httpx.ProxyError) or _certificate_fault(error) is not None


def explained(url: str, error: Exception) -> UnreachableError | None:
    """Return in our words what a certificate or a proxy has to do with an error; null if nothing.

    Args:
        url: Of the server, without credentials.
        error: What httpx raised.
    """
    fault = _certificate_fault(error)
    if fault is not None:
        return _of_certificate(url, fault)
    if isinstance(error, httpx.ProxyError):
        return refused_by_proxy(url, str(error))
    if any("WRONG_VERSION_NUMBER" in str(each) for each in _chain(error) if isinstance(each, ssl.SSLError)):
        return UnreachableError(f"{url} does not speak TLS.", hint="Is it http:// there?", detail=repr(error))
    proxy = proxy_of(url)
    if proxy is not None and isinstance(error, httpx.ConnectError):
        return UnreachableError(
            f"Neither {url} nor the proxy {proxy} answers.",
            hint="The environment names that proxy (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY); NO_PROXY names hosts to reach "
            "without one.",
            detail=repr(error),
        )
    return None


def refused_by_proxy(url: str, words: str) -> UnreachableError:
    """Return the error of a proxy that does not let a connection through; `words` begin with its status."""
    proxy = proxy_of(url) or "of the environment"
    if words.startswith("407"):
        return UnreachableError(
            f"The proxy {proxy} asks for a name and a password (407) on the way to {url}.",
            hint="Put them into HTTPS_PROXY, like http://NAME:PASSWORD@proxy:3128, or name the host in NO_PROXY.",
        )
    return UnreachableError(
        f"The proxy {proxy} does not let this machine reach {url}: {words}.",
        hint="Let it allow that host, or name the host in NO_PROXY.",
    )


def proxy_of(url: str) -> str | None:
    """Return the proxy that the environment names for an address, without its password; null if there is none."""
    parts = urlsplit(url)
    if parts.hostname in LOOPBACK or proxy_bypass(parts.hostname or ""):
        return None
    known = getproxies()
    found = known.get(parts.scheme) or known.get("all")
    if not found:
        return None
    named = urlsplit(found if "://" in found else f"http://{found}")
    return f"{named.scheme}://{named.netloc.rpartition('@')[2]}"


def _of_certificate(url: str, fault: ssl.SSLCertVerificationError) -> UnreachableError:
    file, host = ca_file(), httpx.URL(url).host
    trusted = f"the system's certificates and {file} (TUNEFLEET_CA_FILE)" if file else "the system's certificates"
    if fault.verify_code == _EXPIRED:
        said, hint = "has expired", "Renew it, or set this machine's clock."
    elif fault.verify_code == _NOT_YET:
        said, hint = "is not valid yet", "Set this machine's clock."
    elif fault.verify_code in _WRONG_HOST:
        said, hint = f"is not one for {host}", "Use the name that the certificate has, or give it this one."
    elif fault.verify_code in _UNKNOWN:
        said = f"comes from an authority that is not among {trusted}"
        hint = "Name a file with the certificate of its authority in TUNEFLEET_CA_FILE."
    else:
        said, hint = f"does not hold: {fault.verify_message}", f"What counts are {trusted}."
    return UnreachableError(f"The certificate of {url} {said}.", hint=hint, detail=str(fault))


def _certificate_fault(error: BaseException) -> ssl.SSLCertVerificationError | None:
    return next((each for each in _chain(error) if isinstance(each, ssl.SSLCertVerificationError)), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
