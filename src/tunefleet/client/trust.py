"""TLS trust for connections to servers: the system's certificates, and those of `TUNEFLEET_CA_FILE`.

Also translates errors of certificates and proxies, which an immediate retry does not fix.
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
    """Set the certificates that a process trusts in addition to the system's; call once, in `main`."""
    _chosen[:] = [ca_file]


def ca_file() -> Path | None:
    """Return the file of additional certificates; `None` if there is none."""
    found = _chosen[0] if _chosen else load(ClientSettings).ca_file
    return None if found is None else found.expanduser().absolute()


def context() -> ssl.SSLContext:
    """Return the context that verifies a server's certificate.

    Raises:
        MachineError: If the certificate file is unreadable.
    """
    file = ca_file()
    try:
        return _context(file, None if file is None else file.stat().st_mtime_ns)
    except OSError as error:  # of which an SSLError is one
        raise MachineError(
            f"TUNEFLEET_CA_FILE={file} is not a valid certificate file: {error}.",
            hint="Use a file with one or more PEM certificates.",
        ) from error


@lru_cache(maxsize=4)
def _context(file: Path | None, _: int | None) -> ssl.SSLContext:
    made = ssl.create_default_context()
    if file is not None:
        made.load_verify_locations(cafile=str(file))
    return made


def options(url: str) -> dict[str, Any]:
    """Return the HTTP client options for a server: trusted certificates, and whether to use the environment's proxies.

    Raises:
        MachineError: If the file of certificates cannot be read.
    """
    parsed = httpx.URL(url)
    # Loading the system's certificates takes 15 ms; plain HTTP needs none, and an empty context trusts no server.
    plain = parsed.scheme != "https" and not getproxies().get(parsed.scheme, "").startswith("https:")
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else context()
    # A proxy from the environment cannot reach this machine's loopback address.
    return {"verify": verify, "trust_env": parsed.host not in LOOPBACK}


def lasting(error: BaseException) -> bool:
    """Return whether an immediate retry cannot fix an error of httpx."""
    return isinstance(error, httpx.ProxyError) or _certificate_fault(error) is not None


def explained(url: str, error: Exception) -> UnreachableError | None:
    """Translate an error caused by a certificate or a proxy; `None` if it has another cause.

    Args:
        url: The server's URL, without credentials.
        error: What httpx raised.
    """
    fault = _certificate_fault(error)
    if fault is not None:
        return _of_certificate(url, fault)
    if isinstance(error, httpx.ProxyError):
        return refused_by_proxy(url, str(error))
    if any("WRONG_VERSION_NUMBER" in str(each) for each in _chain(error) if isinstance(each, ssl.SSLError)):
        return UnreachableError(f"{url} does not speak TLS.", hint="Try http:// instead.", detail=repr(error))
    proxy = proxy_of(url)
    if proxy is not None and isinstance(error, httpx.ConnectError):
        return UnreachableError(
            f"Cannot reach {url} through the proxy {proxy}.",
            hint="The proxy is set in the environment (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY). List hosts to "
            "reach directly "
            "in NO_PROXY.",
            detail=repr(error),
        )
    return None


def refused_by_proxy(url: str, words: str) -> UnreachableError:
    """Return the error of a proxy that refuses a connection; `words` begin with its status."""
    proxy = proxy_of(url) or "of the environment"
    if words.startswith("407"):
        return UnreachableError(
            f"The proxy {proxy} requires authentication (407) to reach {url}.",
            hint="Set HTTPS_PROXY=http://NAME:PASSWORD@proxy:3128, or add the host to NO_PROXY.",
        )
    return UnreachableError(
        f"The proxy {proxy} refuses connections to {url}: {words}.",
        hint="Allow the host in the proxy, or add it to NO_PROXY.",
    )


def proxy_of(url: str) -> str | None:
    """Return the environment's proxy for a URL, without its password; `None` if there is none."""
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
        problem, hint = "has expired", "Renew it, or set this machine's clock."
    elif fault.verify_code == _NOT_YET:
        problem, hint = "is not valid yet", "Set this machine's clock."
    elif fault.verify_code in _WRONG_HOST:
        problem, hint = (
            f"is not valid for {host}",
            "Use a name in the certificate, or issue a certificate for this name.",
        )
    elif fault.verify_code in _UNKNOWN:
        problem = f"is issued by an authority that is not in {trusted}"
        hint = "Set TUNEFLEET_CA_FILE to a file with the authority's certificate."
    else:
        problem, hint = f"is invalid: {fault.verify_message}", f"Trusted: {trusted}."
    return UnreachableError(f"The certificate of {url} {problem}.", hint=hint, detail=str(fault))


def _certificate_fault(error: BaseException) -> ssl.SSLCertVerificationError | None:
    return next((each for each in _chain(error) if isinstance(each, ssl.SSLCertVerificationError)), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
