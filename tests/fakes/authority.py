"""A certificate authority of the tests, by openssl: certificates for names, also expired ones and those of clients."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path

    @property
    def settings(self) -> dict[str, Path]:
        """As a server or an agent is given it."""
        return {"tls_cert_file": self.cert, "tls_key_file": self.key}

    @property
    def variables(self) -> dict[str, str]:
        """The same in an environment."""
        return {"TUNEFLEET_TLS_CERT_FILE": str(self.cert), "TUNEFLEET_TLS_KEY_FILE": str(self.key)}


class Authority:
    """Signs certificates.

    Args:
        folder: Where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "ca.pem"
        self._key = folder / "ca.key"
        openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
            "-subj", "/CN=Authority of the tests", "-keyout", str(self._key), "-out", str(self.file),
        )  # fmt: skip

    def sign(self, name: str, *hosts: str, expired: bool = False) -> Pair:
        """Make a certificate for hosts; addresses are known by their digits."""
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request, extension = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        names = ",".join(f"{'IP' if host[-1].isdigit() else 'DNS'}:{host}" for host in hosts)
        extension.write_text(f"subjectAltName={names}\nbasicConstraints=CA:FALSE\n")
        openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", str(pair.key), "-out", str(request),
        )  # fmt: skip
        days = "-1" if expired else "5"
        openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.file), "-CAkey", str(self._key), "-CAcreateserial",
            "-days", days, "-extfile", str(extension), "-out", str(pair.cert),
        )  # fmt: skip
        return pair


def openssl(*arguments: str) -> None:
    """Run it."""
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


__all__ = ["Authority", "Pair"]
