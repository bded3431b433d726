"""What the compatibility page says is left out, is left out; and what it says a callback costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from fastapi.testclient import TestClient

from tests.documents import names
from tests.documents.blocks import ROOT
from tunefleet.api.app import create_app
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.settings import ServerSettings, load
from tunefleet.trainer_control.control.command_queue import CommandQueue
from tunefleet.trainer_control.distributed import step_agreement

_ATTACH = ROOT / "src/tunefleet/trainer_control"
_DOCUMENT = "apiVersion: tunefleet/v1\nmetadata: {name: a}\nspec: {taskType: echo, data: {type: list, items: [a]}}\n"
_MEMORY = """
import sys, tracemalloc
from pathlib import Path
before = set(sys.modules)
tracemalloc.start()
from tunefleet.trainer_control.control.command_queue import CommandQueue
from tunefleet.trainer_control.control.control_server import ControlServer
from tunefleet.trainer_control.journal.status import StatusFile
foreign = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(*sorted(foreign))
imported, _ = tracemalloc.get_traced_memory()
server = ControlServer("a", CommandQueue(), StatusFile(sys.argv[1]), Path(sys.argv[1], "jobs"))
server.start()
print(tracemalloc.get_traced_memory()[0] - imported)
server.stop()
"""


def test_the_header_of_another_format_changes_nothing(tmp_path: Path) -> None:
    core = open_context(load(ServerSettings, data=tmp_path))
    try:
        with TestClient(create_app(core)) as client:
            key = (tmp_path / "keys/admin.key").read_text().strip()
            headers = {"X-API-Key": key, "Workflow-Format": "n8n", "Content-Type": "application/yaml"}
            made = client.post("/api/v1/workflows", content=_DOCUMENT, headers=headers)
    finally:
        core.close()
    assert made.status_code == 201, made.text


def test_a_result_has_no_bundle_and_no_log_of_its_own() -> None:
    said = "`GET /api/v1/results/{id}/bundle`, `GET /api/v1/results/{id}/logs`, `GET /api/v1/results/{id}/files`"
    assert [line.split()[1].rpartition("/")[2] for line in names.unknown_routes(said)] == ["bundle", "logs"]


def test_no_id_or_stream_has_a_name_of_the_other_system() -> None:
    other = re.compile(r"[\"'](?:wfl-|tsk-|SV_)")
    code = {path: path.read_text(encoding="utf-8") for path in (ROOT / "src/tunefleet").rglob("*.py")}
    assert [path.name for path, text in code.items() if other.search(text)] == []


def test_the_callbacks_have_one_logger() -> None:
    loggers = set()
    for path in (*_ATTACH.glob("callbacks/*.py"), _ATTACH / "control" / "control_server.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger":
                loggers |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    assert loggers == {"tunefleet.control"}


def test_a_step_at_which_nothing_is_asked_costs_one_look() -> None:
    """What the benchmark measures in time is counted here in calls, which no load changes."""
    due = step_agreement.Solo(CommandQueue()).due
    calls: list[str] = []

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event in {"call", "c_call"}:
            calls.append(frame.f_code.co_name if event == "call" else argument.__name__)

    sys.setprofile(count)
    try:
        due(1)
    finally:
        sys.setprofile(None)
    assert [name for name in calls if name != "setprofile"] == ["due"], calls


def test_the_control_port_is_of_the_standard_library_and_small(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _MEMORY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    foreign, size = done.stdout.splitlines()
    assert foreign in {"", "tunefleet"}
    assert int(size) < 1_000_000
