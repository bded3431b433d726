"""gcp-storage-emulator, which speaks the JSON API of Google Cloud Storage, and the key of a service account for it.

It checks neither keys nor signatures: that a link which was tampered with is refused is not proved by it.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

BUCKET = "artifacts"


class Emulator:
    """One bucket that lives in memory.

    Args:
        port: To listen on.
        folder: For the key.
    """

    def __init__(self, port: int, folder: Path) -> None:
        from gcp_storage_emulator.server import create_server

        self.endpoint = f"http://127.0.0.1:{port}"
        self.key_file = folder / "key.json"
        self.key_file.write_text(json.dumps(_key()))
        # It tells every request.
        for name in ("gcp_storage_emulator", "api", "api.object", "api.http"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._server = create_server("127.0.0.1", port, in_memory=True, default_bucket=BUCKET)

    def start(self) -> Emulator:
        """Listen."""
        self._server.start()
        return self

    def stop(self) -> None:
        """End it."""
        self._server.stop()


def _key() -> dict[str, str]:
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account", "project_id": "tests", "private_key_id": "tests", "private_key": pem.decode(),
        "client_email": "tests@tests.iam.gserviceaccount.com", "token_uri": "http://127.0.0.1:9/token",
    }  # fmt: skip
