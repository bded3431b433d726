"""A data folder is opened by one process at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tunefleet.db.engine.locks import FolderLock


def test_one_process_a_data_folder(tmp_path: Path) -> None:
    lock = FolderLock.take(tmp_path)
    code = (
        "import pathlib, sys; from tunefleet.errors import StoreError\n"
        "from tunefleet.db.engine.locks import FolderLock\n"
        f"try: FolderLock.take(pathlib.Path({str(tmp_path)!r}))\n"
        "except StoreError as error: sys.exit(str(error))\n"
    )
    refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"in use by process {os.getpid()}" in refused.stderr
    assert "--data" in refused.stderr
    lock.release()
    subprocess.run([sys.executable, "-c", code], check=True)
