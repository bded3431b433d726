"""The certificate that a server or an agent shows over TLS: read, tried, and read again when its files change.

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

# How often the files are looked at; SIGHUP has them read at once.
LOOK_S: Final = 30.0
# So often it is said again that a certificate will keep clients away: whoever renews it may have stopped.
AGAIN_S: Final = 6 * 3600.0
_SOON_S: Final = 2 * 86_400.0
_EXPIRED: Final = 10
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED."""
_FLIGHTS: Final = 8


@dataclass(frozen=True, slots=True)
class Facts:
    """What a client learns from a certificate.

    Args:
        expires_at: Unix time; null if it cannot be told any more.
        fault: Why every client refuses it, in OpenSSL's words; null if not.
    """

    names: tuple[str, ...] = ()
    expires_at: float | None = None
    fault: str | None = None

    def covers(self, host: str) -> bool:
        """Say whether a client that asks for this host takes the certificate."""
        try:
            wanted = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            parent = f"*.{host.lower().partition('.')[2]}"
            return any(name.lower() in {host.lower(), parent} for name in self.names)
        return any(_is_address(name, wanted) for name in self.names)


class Certificate:
    """A certificate with its key.

    Raises:
        MachineError: If a file is missing or none of its kind, or the key is another certificate's.
    """

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        self._cert_file, self._key_file = cert_file.expanduser(), key_file.expanduser()
        self._read_at = self._stamp()
        self._fault = ""
        self._told_at = time.monotonic()
        self._newest = _context(self._cert_file, self._key_file)
        self.context = _context(self._cert_file, self._key_file)
        """For whoever listens; shows the newest certificate to each new connection."""
        # One that is read into it while somebody shakes hands would be without its key for a moment.
        self.context.sni_callback = self._show
        self.trust = _trusting(self._cert_file)
        """For a client of this process alone: trusts this certificate under whatever name, and nothing else."""
        self.facts = _facts(self.context, self.trust)
        """What clients learn from it."""

    def tell(self) -> None:
        """Log what will keep clients away."""
        facts, self._told_at = self.facts, time.monotonic()
        left_s = _SOON_S if facts.expires_at is None else facts.expires_at - time.time()
        fault = facts.fault or ("it has expired" if left_s <= 0 else None)
        if fault is not None:
            log.error("Clients will refuse the certificate %s: %s.", self._cert_file, fault)
        elif left_s < _SOON_S:
            log.warning("The certificate %s expires in %.0f hours.", self._cert_file, left_s / 3600)

    def refresh(self, *, asked: bool = False) -> bool:
        """Read the files again if they have changed; what cannot be used leaves the old certificate in place."""
        try:
            stamp = self._stamp()
            if stamp == self._read_at and not asked:
                if time.monotonic() - self._told_at >= AGAIN_S:
                    self.tell()
                return False
            tried = _context(self._cert_file, self._key_file)
            facts = _facts(tried, _trusting(self._cert_file))
            self._newest = tried
            self.trust.load_verify_locations(self._cert_file)
        except (MachineError, OSError) as error:
            # Who renews it writes two files, one after the other: it is tried again, and said once.
            if str(error) != self._fault:
                log.log(logging.ERROR, "The certificate is not read again, and the old one stays: %s", error)
            self._fault = str(error)
            return False
        self._read_at, self._fault, self.facts = stamp, "", facts
        log.info("The certificate %s was read again.", self._cert_file)
        self.tell()
        return True

    def _show(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._newest

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        found = []
        for variable, path in (("CERT", self._cert_file), ("KEY", self._key_file)):
            try:
                with path.open("rb") as file:
                    file.read(1)
                state = path.stat()
            except OSError as error:
                raise MachineError(
                    f"TUNEFLEET_TLS_{variable}_FILE={path} cannot be read: {error.strerror or error}.",
                    hint="Let it name a PEM file that the user of this process may read.",
                ) from None
            found.append((state.st_ino, state.st_size, state.st_mtime_ns))
        return tuple(found)


def opened(cert_file: Path | None, key_file: Path | None) -> Certificate | None:
    """Return the certificate that the settings name; null if they name none.

    Raises:
        MachineError: If one of the two is missing, or they cannot be used.
    """
    if cert_file is None and key_file is None:
        return None
    if cert_file is None or key_file is None:
        given, lacking = ("KEY", "CERT") if cert_file is None else ("CERT", "KEY")
        raise MachineError(
            f"TUNEFLEET_TLS_{given}_FILE is set, and TUNEFLEET_TLS_{lacking}_FILE is not.",
            hint="TLS needs both; without both, plain HTTP is served.",
        )
    return Certificate(cert_file, key_file)


@contextmanager
def kept_fresh(certificate: Certificate | None) -> Iterator[None]:
    """Read a certificate again when its files change, and on SIGHUP, while the body runs; for the main thread."""
    if certificate is None:
        yield
        return
    over, wake, asked = threading.Event(), threading.Event(), threading.Event()

    def look() -> None:
        while not over.is_set():
            wake.wait(LOOK_S)
            wake.clear()
            hup = asked.is_set()
            asked.clear()
            if not over.is_set():
                certificate.refresh(asked=hup)

    def on_hangup(*_: Any) -> None:
        asked.set()
        wake.set()

    before = signal.signal(signal.SIGHUP, on_hangup)
    thread = threading.Thread(target=look, name="certificate", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        wake.set()
        signal.signal(signal.SIGHUP, before)
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
    _trusting(cert_file)  # says what is wrong with this one of the two
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise MachineError(
                f"The key {key_file} is not the key of the first certificate in {cert_file}.",
                hint="In TUNEFLEET_TLS_CERT_FILE the server's own certificate comes first, then its authorities'.",
            ) from None
        raise MachineError(
            f"TUNEFLEET_TLS_KEY_FILE={key_file} holds no private key in PEM that can be used ({_why(error)}).",
            hint="It begins with -----BEGIN PRIVATE KEY----- or the like.",
        ) from None
    return context


def _why(error: ssl.SSLError) -> str:
    return error.reason or str(error)


def _no_passphrase() -> str:
    raise MachineError(
        "The key in TUNEFLEET_TLS_KEY_FILE has a passphrase, and nobody is there to type it.",
        hint="Write it without one, readable by the process alone: openssl pkey -in KEY -out NEW.",
    )


def _trusting(cert_file: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cert_file)
    except ssl.SSLError as error:
        raise MachineError(
            f"TUNEFLEET_TLS_CERT_FILE={cert_file} holds no certificate in PEM that can be used ({_why(error)}).",
            hint="It begins with -----BEGIN CERTIFICATE-----.",
        ) from None
    return context


def _facts(server: ssl.SSLContext, trust: ssl.SSLContext) -> Facts:
    """Shake hands with ourselves in memory, which tells what every client will find."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = trust.wrap_bio(to_client, to_server)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(_FLIGHTS):
            for side in (near, far):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError as error:
        expired = "it has expired" if error.verify_code == _EXPIRED else error.verify_message
        return Facts(fault=expired)
    except ssl.SSLError as error:
        return Facts(fault=str(error.reason))
    seen: dict[str, Any] = near.getpeercert() or {}
    names = tuple(value for kind, value in seen.get("subjectAltName", ()) if kind in {"DNS", "IP Address"})
    ends = seen.get("notAfter")
    return Facts(names, ssl.cert_time_to_seconds(ends) if isinstance(ends, str) else None)
