"""Azurite, the emulator that Azure's maker ships, as a process of the test's own; it lives in memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# The account and the key that every Azurite has: no secret.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTAINER = "artifacts"


def missing_programs() -> list[str]:
    """Name what is not installed."""
    lacking = [] if shutil.which("node") else ["node"]
    return lacking if _script().is_file() else [*lacking, "azurite"]


def _script() -> Path:
    folder = Path(os.environ.get("TUNEFLEET_AZURITE", ROOT / ".azurite"))
    return folder / "node_modules/azurite/dist/src/blob/main.js"


class Azurite:
    """One container behind one key.

    Args:
        port: To listen on.
        folder: For what it writes.
    """

    def __init__(self, port: int, folder: Path) -> None:
        from azure.storage.blob import BlobServiceClient

        self.endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        self.connection = (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={self.endpoint};"
        )
        node, log = shutil.which("node"), folder / "said.log"
        assert node is not None
        options = ["--blobPort", str(port), "--inMemoryPersistence", "--silent", "--skipApiVersionCheck"]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [node, str(_script()), *options, "--disableTelemetry"], cwd=folder, stdout=out, stderr=out
            )
        self._log = log
        self.service = BlobServiceClient.from_connection_string(self.connection, retry_total=0)

    def start(self) -> Azurite:
        """Wait until it answers, and make its container."""
        from azure.core.exceptions import AzureError

        deadline = time.monotonic() + 120
        while True:
            try:
                self.service.create_container(CONTAINER)
            except AzureError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, f"Azurite does not respond\n{self._log.read_text()}"
                time.sleep(0.05)
            else:
                return self

    def stop(self) -> None:
        """End it."""
        self.service.close()
        self._process.terminate()
        self._process.wait(30)
