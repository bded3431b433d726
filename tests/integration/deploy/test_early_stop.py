"""A stop that comes before a server or an agent hears signals by itself, as of Ctrl-C right after its first line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.proof

EARLY = """
import os, signal, sys, uvicorn
run = uvicorn.Server.run

def run_after_a_signal(self, sockets=None):
    os.kill(os.getpid(), signal.{signal})
    run(self, sockets)

uvicorn.Server.run = run_after_a_signal
from {module} import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("module", ["tunefleet.api.process", "tunefleet.agent.__main__"])
def test_it_ends_cleanly(module: str, signal: str, tmp_path: Path, free_port: Callable[[], int]) -> None:
    names = ("HOME", "MODELS_DIR", "DATASETS_DIR", "CHECKPOINTS_DIR", "LOGS_DIR")
    folders = {name: str(tmp_path / name.lower()) for name in names}
    port = str(free_port())
    arguments = ["--data", str(tmp_path / "data"), "--port", port] if "server" in module else []
    done = subprocess.run(
        [sys.executable, "-c", EARLY.format(module=module, signal=signal), *arguments],
        env={**os.environ, **folders, "PORT": port, "HOST": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"127.0.0.1:{port}" in done.stderr
    assert "Stopped" in done.stderr
    assert "Traceback" not in done.stderr
