"""Secrets in a real job process: the program has them, and no file of the job does."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.runtime.conftest import environment, make_job, until
from tunefleet.runtime import Supervisor
from tunefleet.runtime.secrets import Secrets

TOKEN = 'hf_"quoted"-value-1'
FILED = "from-a-file-2"


def test_a_value_reaches_the_program_and_no_file_of_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "FILED").write_text(f"{FILED}\n")
    (folder / "FILED").chmod(0o600)
    secrets = Secrets({"TOKEN": TOKEN, "OTHER": "another-one-3"}, folder)
    base = {**environment(tmp_path), **secrets.environment}
    supervisor = Supervisor(tmp_path / "results", endpoints_dir=tmp_path / "home" / "jobs", warm=False, base_env=base)
    try:
        handle = supervisor.launch(make_job("reveal", token="Bearer ${secret:TOKEN} ${secret:FILED} $${kept}"))
        until(lambda: handle.poll() is not None)
        end = handle.poll()
    finally:
        supervisor.close()
    assert end is not None
    assert end.error == "RuntimeError: The server refused Bearer ${secret:TOKEN} ${secret:FILED} ${kept}."
    revealed = json.loads((tmp_path / "revealed.json").read_text())
    assert revealed == {"token": f"Bearer {TOKEN} {FILED} ${{kept}}", "left": []}
    log = handle.folder.log.read_text()
    for word in ("printed", "written", "logged"):
        assert f"{word} Bearer ${{secret:TOKEN}} ${{secret:FILED}} ${{kept}}" in log
    files = [path for path in handle.folder.root.rglob("*") if path.is_file()]
    assert len(files) > 3
    for path in files:
        content = path.read_bytes()
        for value in (TOKEN, json.dumps(TOKEN)[1:-1], FILED):
            assert value.encode() not in content, path.name
