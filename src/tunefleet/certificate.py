"""The TLS certificate of a server or an agent: loaded, verified, and reloaded when its files change.

Standard library only. Knows files and TLS; not what is served.
"""

from __future__ import annotations

import ipaddress
import logging
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tunefleet.errors import MachineError

log = logging.getLogger(__name__)

# Seconds between checks of the files; SIGHUP reloads them immediately.
LOOK_S: Final = 30.0
# Seconds between repeated warnings about a certificate that clients will reject: its renewal may have failed.
AGAIN_S: Final = 6 * 3600.0
_SOON_S: Final = 2 * 86_400.0
# OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED.
_EXPIRED: Final = 10
# More rounds than a TLS handshake has flights, so that a broken one ends.
_FLIGHTS: Final = 8


@dataclass(frozen=True, slots=True)
class CertificateInfo:
    """What a client sees of a certificate.

    Args:
        expires_at: Unix time; `None` if unknown because the verification failed.
        fault: Why clients reject it, as reported by OpenSSL; `None` if they do not.
    """

    names: tuple[str, ...] = ()
    expires_at: float | None = None
    fault: str | None = None

    def covers(self, host: str) -> bool:
        """Return whether a client that connects to this host accepts the certificate."""
        try:
            wanted = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            parent = f"*.{host.lower().partition('.')[2]}"
            return any(name.lower() in {host.lower(), parent} for name in self.names)
        return any(_is_address(name, wanted) for name in self.names)


class Certificate:
    """A certificate with its key.

    Raises:
        MachineError: If a file is missing or invalid, or the key does not match the certificate.
    """

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        self._cert_file, self._key_file = cert_file.expanduser(), key_file.expanduser()
        self._read_at = self._stamp()
        self._fault = ""
        self._logged_at = time.monotonic()
        self._newest = _context(self._cert_file, self._key_file)
        self.context = _context(self._cert_file, self._key_file)
        """For the listening socket; presents the newest certificate to each new connection."""
        # Not reloaded in place: during `load_cert_chain` a concurrent handshake would see a certificate without its
        # key.
        self.context.sni_callback = self._present
        self.trust = _trust_context(self._cert_file)
        """For clients within this process: trusts only this certificate, under any host name."""
        self.facts = _facts(self.context, self.trust)
        """What clients see of it."""

    def tell(self) -> None:
        """Log a warning if clients will reject the certificate."""
        facts, self._logged_at = self.facts, time.monotonic()
        left_s = _SOON_S if facts.expires_at is None else facts.expires_at - time.time()
        fault = facts.fault or ("it has expired" if left_s <= 0 else None)
        if fault is not None:
            log.error("Clients will reject the certificate %s: %s.", self._cert_file, fault)
        elif left_s < _SOON_S:
            log.warning("The certificate %s expires in %.0f hours.", self._cert_file, left_s / 3600)

    def refresh(self, *, asked: bool = False) -> bool:
        """Reload the files if they have changed; if they are invalid, keep the old certificate."""
        try:
            stamp = self._stamp()
            if stamp == self._read_at and not asked:
                if time.monotonic() - self._logged_at >= AGAIN_S:
                    self.tell()
                return False
            tried = _context(self._cert_file, self._key_file)
            facts = _facts(tried, _trust_context(self._cert_file))
            self._newest = tried
            self.trust.load_verify_locations(self._cert_file)
        except (MachineError, OSError) as error:
            # A renewal writes two files in sequence, so a mismatch may be temporary: retry, and log it once.
            if str(error) != self._fault:
                log.log(logging.ERROR, "The certificate could not be reloaded; the old one remains in use: %s", error)
            self._fault = str(error)
            return False
        self._read_at, self._fault, self.facts = stamp, "", facts
        log.info("The certificate %s was reloaded.", self._cert_file)
        self.tell()
        return True

    def _present(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._newest

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        stamps = []
        for variable, path in (("CERT", self._cert_file), ("KEY", self._key_file)):
            try:
                with path.open("rb") as file:
                    file.read(1)
                state = path.stat()
            except OSError as error:
                raise MachineError(
                    f"TUNEFLEET_TLS_{variable}_FILE={path} cannot be read: {error.strerror or error}.",
                    hint="Set it to a PEM file that the user of this process can read.",
                ) from None
            stamps.append((state.st_ino, state.st_size, state.st_mtime_ns))
        return tuple(stamps)


def load_certificate(cert_file: Path | None, key_file: Path | None) -> Certificate | None:
    """Return the certificate from the settings; `None` if none is configured.

    Raises:
        MachineError: If one of the two is missing or invalid.
    """
    if cert_file is None and key_file is None:
        return None
    if cert_file is None or key_file is None:
        given, missing = ("KEY", "CERT") if cert_file is None else ("CERT", "KEY")
        raise MachineError(
            f"TUNEFLEET_TLS_{given}_FILE is set, but TUNEFLEET_TLS_{missing}_FILE is not.",
            hint="Set both for TLS, or neither for plain HTTP.",
        )
    return Certificate(cert_file, key_file)


@contextmanager
def reloaded(certificate: Certificate | None) -> Iterator[None]:
    """Reload a certificate when its files change, and on SIGHUP, while the body runs."""
    if certificate is None:
        yield
        return
    stopped, wake, requested = threading.Event(), threading.Event(), threading.Event()

    def look() -> None:
        while not stopped.is_set():
            wake.wait(LOOK_S)
            wake.clear()
            hup = requested.is_set()
            requested.clear()
            if not stopped.is_set():
                certificate.refresh(asked=hup)

    def on_hangup(*_: Any) -> None:
        # Only set flags here: a signal handler interrupts the main thread, which may hold the log's lock.
        requested.set()
        wake.set()

    previous = signal.signal(signal.SIGHUP, on_hangup)  # only possible in the main thread
    thread = threading.Thread(target=look, name="certificate", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        wake.set()
        signal.signal(signal.SIGHUP, previous)
        thread.join()


def _is_address(name: str, wanted: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return ipaddress.ip_address(name) == wanted
    except ValueError:
        return False


def _context(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _trust_context(cert_file)  # `load_cert_chain` does not report which of the two files is invalid
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise MachineError(
                f"Key {key_file} is not the key of the first certificate in {cert_file}.",
                hint="Put the server's own certificate first in TUNEFLEET_TLS_CERT_FILE, then those of its CAs.",
            ) from None
        raise MachineError(
            f"TUNEFLEET_TLS_KEY_FILE={key_file} contains no valid private key in PEM format ({_why(error)}).",
            hint="The file must begin with -----BEGIN PRIVATE KEY----- or similar.",
        ) from None
    return context


def _why(error: ssl.SSLError) -> str:
    return error.reason or str(error)


def _no_passphrase() -> str:
    # Without a callback OpenSSL would prompt on the terminal and block the start.
    raise MachineError(
        "The key in TUNEFLEET_TLS_KEY_FILE has a passphrase, which is not supported.",
        hint="Remove it, and make the file readable for this process only: openssl pkey -in KEY -out NEW.",
    )


def _trust_context(cert_file: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the file may lack the root CA
    try:
        context.load_verify_locations(cert_file)
    except ssl.SSLError as error:
        raise MachineError(
            f"TUNEFLEET_TLS_CERT_FILE={cert_file} contains no valid certificate in PEM format ({_why(error)}).",
            hint="The file must begin with -----BEGIN CERTIFICATE-----.",
        ) from None
    return context


def _facts(server: ssl.SSLContext, trust: ssl.SSLContext) -> CertificateInfo:
    """Return what clients see, from a TLS handshake in memory."""
    # The standard library cannot parse a certificate; a handshake also finds what clients would reject.
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = trust.wrap_bio(to_client, to_server)
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(_FLIGHTS):
            for side in (client_side, server_side):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError as error:
        expired = "it has expired" if error.verify_code == _EXPIRED else error.verify_message
        return CertificateInfo(fault=expired)
    except ssl.SSLError as error:
        return CertificateInfo(fault=str(error.reason))
    seen: dict[str, Any] = client_side.getpeercert() or {}
    names = tuple(value for kind, value in seen.get("subjectAltName", ()) if kind in {"DNS", "IP Address"})
    ends = seen.get("notAfter")
    return CertificateInfo(names, ssl.cert_time_to_seconds(ends) if isinstance(ends, str) else None)
